"""How far an import is: ``.import/request.json`` names it, ``.import/shards.jsonl`` has a line per finished shard."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from merlin.base.files import sync_path
from merlin.base.ranges import Ranges
from merlin.errors import UsageError
from merlin.shards.format.manifest_file import NAME, VIRTUAL_NAME, read_manifest
from merlin.shards.format.shard_info import info_name, shard_name
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

    def begin(self) -> dict[int, ImportedShard]:
        """The shards that are done already; afterwards a manifest in the directory is the import's own.

        Raises UsageError if it holds anything else.
        """
        if (self.directory / NAME).is_file():
            if read_manifest(self.directory).study["study_id"] != study_id(self._identity):
                raise self._is_taken("another data set")
            return {}
        request = self.request()
        if request is not None and request.get("identity") != self._identity:
            if self.finished():
                raise self._is_taken("an unfinished import of other files, or with another schema")
            self.remove_data_set()
            request = None
        if request is None and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} is not empty; give a new directory with --out")
        done = self.shards_there()
        self.start({"identity": self._identity}, list(done.values()))
        return done

    def _is_taken(self, by: str) -> UsageError:
        return UsageError(f"{self.directory} holds {by}; give another --out, or replace it with --overwrite")

    def holds_data_set(self) -> bool:
        """True if there is a data set, finished or not."""
        return (self.directory / NAME).is_file() or self.folder.is_dir()

    @contextmanager
    def replacement(self) -> Iterator[ImportDirectory]:
        """Where the data set is written that replaces this one, which stays until the other is complete.

        Raises UsageError if the directory holds a file that is not of its data set.
        """
        other = next((p for p in sorted(self.directory.iterdir()) if not self.is_own(p)), None)
        if other is not None:
            raise UsageError(
                f"{other} is not of the data set, which is therefore not replaced; move it, or give another --out"
            )
        with self._room(self._identity[:16]) as room:
            with ImportDirectory(room, self._identity) as made:
                yield made
            self._take_over(room)

    def _take_over(self, room: Path) -> None:
        """Move a data set here, the manifest last; if this process is killed, the next one goes on with it."""
        data = read_manifest(room)
        made = [entry.shard for entry in data.shards]
        virtual = data.virtual.file or VIRTUAL_NAME
        names = {VIRTUAL_NAME, virtual, *map(shard_name, made), *map(info_name, made)}
        (self.directory / NAME).unlink(missing_ok=True)
        for name in sorted(names):
            if (room / name).exists():
                (room / name).replace(self.directory / name)
        for path in self.directory.iterdir():
            if self.is_own(path) and path.name not in names and path != self.folder:
                path.unlink()
        sync_path(self.directory)
        (room / NAME).replace(self.directory / NAME)
        sync_path(self.directory)
        self.remove_record()


def study_id(identity: str) -> str:
    """The study id that the manifest of an import has."""
    return f"import-{identity[:16]}"
