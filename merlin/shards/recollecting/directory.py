"""The directory that is written: what is finished there, and where bundles lie meanwhile.

``.collect/request.json`` says by which definition, ``.collect/shards.jsonl`` has a line for each finished shard, and
``.collect/bundles`` goes away with them when the manifest is written.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec import Struct

from merlin.base.ranges import Ranges
from merlin.errors import UsageError
from merlin.shards.format.manifest_file import NAME, read_manifest
from merlin.shards.unfinished_shards import UnfinishedShards
from merlin.shards.writing.bundle import DIRECTORY
from merlin.shards.writing.folders import Folders

_WHAT = "collect"
MARK = "collected_again"  # of the study's facts in a manifest: the digest of what was collected, and by what


def folders_in(out: Path) -> Folders:
    """Where a data set that is collected again is written."""
    return Folders(out, out / f".{_WHAT}" / DIRECTORY, is_durable=False)


class Origins(Struct, frozen=True):
    """How many rows have values from files, and how many from shards."""

    files: int = 0
    shards: int = 0

    def __add__(self, other: Origins) -> Origins:
        return Origins(self.files + other.files, self.shards + other.shards)


class CollectedShard(Struct, frozen=True):
    """A finished shard, and rows that ended ok and that the new definition refuses, by cause."""

    shard: int
    info_digest: str
    size_bytes: int
    num_rows: int
    failed: dict[str, Ranges]
    origins: Origins
    resets: str = ""  # which of its tasks had run again by then; see `Ended`


class CollectDirectory(UnfinishedShards[CollectedShard]):
    """The directory of a data set that is collected again."""

    def __init__(self, directory: Path, study_id: str, definition: str) -> None:
        super().__init__(directory, _WHAT, CollectedShard)
        self._request = {"study_id": study_id, "definition": definition}

    def is_complete(self, mark: str) -> bool:
        """True if the data set is there already. Raises UsageError if another one is."""
        if not (self.directory / NAME).is_file():
            return False
        found = read_manifest(self.directory).study.get(MARK)
        if found == mark:
            self.remove_record()
            return True
        why = "" if found is None else ", collected by another definition, or before tasks ran again"
        raise UsageError(
            f"{self.directory} holds a data set{why}; give another directory with --out, or remove this one"
        )

    def begin(self) -> dict[int, CollectedShard]:
        """The shards that are finished already; those of another definition are removed.

        Raises UsageError if the directory holds anything that no collect of this study has begun.
        """
        request = self.request()
        if request is None and any(path != self.folder for path in self.directory.iterdir()):
            raise UsageError(f"{self.directory} is not empty; give a new directory with --out")
        if request is not None and request.get("study_id") != self._request["study_id"]:
            raise UsageError(
                f"{self.directory} holds an unfinished data set of another study; give another --out"
            )
        if request is not None and request != self._request:
            self.remove_data_set()
        done = self.shards_there()
        unfinished = folders_in(self.directory).bundles
        shutil.rmtree(unfinished, ignore_errors=True)
        self.start(dict(self._request), list(done.values()))
        return done
