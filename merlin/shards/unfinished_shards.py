"""A data set that is written shard by shard, outside of a study: which of its shards are there, how to remove them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Protocol, TypeVar

from merlin.base.files import TEMPORARY_SUFFIX
from merlin.shards.format.manifest_file import NAME
from merlin.shards.format.shard_info import sized_info
from merlin.shards.unfinished import UnfinishedDirectory

_FILES = ("ensemble*.h5", "shard_*.h5", "shard_*.json", "shard_*.json.next", f"*{TEMPORARY_SUFFIX}")


class _WrittenShard(Protocol):
    """A finished shard, as the log of its directory has it."""

    @property
    def shard(self) -> int: ...
    @property
    def info_digest(self) -> str: ...


Shard = TypeVar("Shard", bound=_WrittenShard)


class UnfinishedShards(UnfinishedDirectory[Shard]):
    """The directory of such a data set. `what` names the command that writes it."""

    def __init__(self, directory: Path, what: str, kind: type[Shard]) -> None:
        super().__init__(directory, what, "shards.jsonl", kind)

    def shards_there(self) -> dict[int, Shard]:
        """The finished shards, by number: those whose files are as they were when they were finished."""
        return {item.shard: item for item in self.finished() if self._is_there(item)}

    def _is_there(self, item: Shard) -> bool:
        info = sized_info(self.directory, item.shard)
        return info is not None and info.info_digest == item.info_digest

    def is_own(self, path: Path) -> bool:
        """True for what a data set, finished or not, consists of."""
        return path in (self.folder, self.directory / NAME) or any(fnmatchcase(path.name, p) for p in _FILES)

    def remove_data_set(self) -> None:
        """Remove what a data set, finished or not, consists of, and nothing else."""
        (self.directory / NAME).unlink(missing_ok=True)
        for pattern in _FILES:
            for path in self.directory.glob(pattern):
                path.unlink()
        self.remove_record()
