"""How far an import is: ``.import/request.json`` names it, ``.import/shards.jsonl`` has a line per finished shard."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from merlin.base.files import TEMPORARY_SUFFIX
from merlin.errors import ShardError, UsageError
from merlin.shards.format.manifest_file import NAME, read_manifest
from merlin.shards.format.rows import Ranges
from merlin.shards.format.shard_info import info_name, read_info, shard_name
from merlin.shards.unfinished import UnfinishedDirectory


@dataclass(frozen=True, slots=True)
class ImportedShard:
    """A finished shard, and the rows that were left out of it, by cause."""

    shard: int
    info_digest: str
    dropped: dict[str, Ranges]


class ImportDirectory(UnfinishedDirectory[ImportedShard]):
    """The directory of an import. `identity` is that of the schema and the files."""

    def __init__(self, directory: Path, identity: str) -> None:
        super().__init__(directory, "import", "shards.jsonl", ImportedShard)
        self._identity = identity
        self._is_new = not directory.exists()

    def begin(self, *, overwrite: bool) -> dict[int, ImportedShard]:
        """The shards that are done already; a manifest in the directory afterwards is the import's own.

        Raises UsageError if it holds anything else.
        """
        if (self.directory / NAME).is_file():
            if not overwrite and read_manifest(self.directory).study["study_id"] == study_id(self._identity):
                return {}
            self._require(overwrite, "another data set")
            self._remove_data_set()
        request = self.request()
        if request is not None and (overwrite or request.get("identity") != self._identity):
            if self.finished():
                self._require(overwrite, "an unfinished import of other files, or with another schema")
            self._remove_data_set()
            request = None
        if request is None and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} is not empty; give a new directory with --out")
        done = {item.shard: item for item in self.finished() if self._is_there(item)}
        self.start({"identity": self._identity}, list(done.values()))
        return done

    def _require(self, overwrite: bool, what: str) -> None:
        if not overwrite:
            raise UsageError(
                f"{self.directory} holds {what}; give another --out, or replace it with --overwrite"
            )

    def _is_there(self, item: ImportedShard) -> bool:
        try:
            info = read_info(self.directory / info_name(item.shard))
            size = (self.directory / shard_name(item.shard)).stat().st_size
        except (ShardError, OSError):
            return False
        return info.info_digest == item.info_digest and size == info.size_bytes

    def discard(self) -> None:
        """Remove what was written, and the directory if it was not there before."""
        self._remove_data_set()
        if self._is_new:
            with suppress(OSError):  # by now something else is in it
                self.directory.rmdir()

    def _remove_data_set(self) -> None:
        """Remove what a data set or an unfinished import consists of, and nothing else."""
        (self.directory / NAME).unlink(missing_ok=True)
        for pattern in ("ensemble*.h5", "shard_*.h5", "shard_*.json", f"*{TEMPORARY_SUFFIX}"):
            for path in self.directory.glob(pattern):
                path.unlink()
        self.remove_record()


def study_id(identity: str) -> str:
    """What the manifest of an import says it is."""
    return f"import-{identity[:16]}"
