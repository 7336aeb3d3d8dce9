"""How far an import is: ``.import/request.json`` names it, ``.import/shards.jsonl`` has a line per finished shard."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from merlin.errors import UsageError
from merlin.shards.format.manifest_file import NAME, read_manifest
from merlin.shards.format.rows import Ranges
from merlin.shards.unfinished_shards import UnfinishedShards


class ImportedShard(Struct, frozen=True):
    """A finished shard, and the rows that were left out of it, by cause."""

    shard: int
    info_digest: str
    dropped: dict[str, Ranges]


class ImportDirectory(UnfinishedShards[ImportedShard]):
    """The directory of an import. `identity` is that of the schema and the files."""

    def __init__(self, directory: Path, identity: str) -> None:
        super().__init__(directory, "import", ImportedShard)
        self._identity = identity
        self._is_new = not directory.exists()

    def begin(self, *, overwrite: bool) -> dict[int, ImportedShard]:
        """The shards that are done already; afterwards a manifest in the directory is the import's own.

        Raises UsageError if it holds anything else.
        """
        if (self.directory / NAME).is_file():
            if not overwrite and read_manifest(self.directory).study["study_id"] == study_id(self._identity):
                return {}
            self._require(overwrite, "another data set")
            self.remove_data_set()
        request = self.request()
        if request is not None and (overwrite or request.get("identity") != self._identity):
            if self.finished():
                self._require(overwrite, "an unfinished import of other files, or with another schema")
            self.remove_data_set()
            request = None
        if request is None and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} is not empty; give a new directory with --out")
        done = self.shards_there()
        self.start({"identity": self._identity}, list(done.values()))
        return done

    def _require(self, overwrite: bool, what: str) -> None:
        if not overwrite:
            raise UsageError(
                f"{self.directory} holds {what}; give another --out, or replace it with --overwrite"
            )

    def discard(self) -> None:
        """Remove what was written, and the directory if it was not there before."""
        self.remove_data_set()
        if self._is_new:
            with suppress(OSError):  # by now something else is in it
                self.directory.rmdir()


def study_id(identity: str) -> str:
    """The study id that the manifest of an import has."""
    return f"import-{identity[:16]}"
