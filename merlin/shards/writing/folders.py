"""Where a data set is written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.plan.plan import StepInstance
from merlin.shards.writing.bundle import DIRECTORY

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace


class Folders(Struct, frozen=True):
    """Where the shards of a data set are written, and the bundles that they are made of."""

    shards: Path
    bundles: Path
    is_durable: bool = True  # bundles outlive a crash of the machine, as the outcomes in the ledger do

    @staticmethod
    def of(workspace: Workspace, aggregate: StepInstance) -> Folders:
        """The folders that a run uses."""
        return Folders(workspace.data_set_dir(aggregate), workspace.path / aggregate.id / DIRECTORY)

    def bundles_of(self, shard: int) -> Path:
        return self.bundles / str(shard)
