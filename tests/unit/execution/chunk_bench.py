"""A workspace with its ledger and a runner, for tests that run chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from study_on_disk import make_workspace

from merlin.execution.runner import ChunkRunner
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Chunk, ChunkResult
from merlin.workspace.directory import Workspace


class Bench:
    """One workspace, its ledger and a runner."""

    def __init__(self, root: Path, *instances: StepInstance, **runner: Any) -> None:
        self.workspace: Workspace = make_workspace(root, *instances)
        self.ledger = LedgerWriter(self.workspace.ledger_dir, "w0")
        self.runner = ChunkRunner(self.workspace, "w0", self.ledger, **runner)

    def run(self, lo: int, hi: int, instance: str = "s", **more: Any) -> ChunkResult:
        return self.runner.run(Chunk(instance=instance, lo=lo, hi=hi, **more))

    def outcomes(self, instance: str = "s") -> list[tuple[int, int, int]]:
        return list(replay(self.workspace.ledger_dir, self.workspace.plan).outcomes[instance].runs())

    def failures(self) -> dict[int, Any]:
        found = replay(self.workspace.ledger_dir, self.workspace.plan).failures()
        return {f.task: f for f in (getattr(x, "failure", x) for x in found)}

    def folder(self, task: int, instance: str = "s") -> Path:
        return self.workspace.task_dir(self.workspace.instance(instance), task)

    def close(self) -> None:
        self.runner.close()
        self.ledger.close()
