"""How far an import is: ``.import/request.json`` names it, ``.import/shards.jsonl`` has a line per finished shard."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from merlin.base.files import TEMPORARY_SUFFIX, write_text
from merlin.base.locks import LockTaken, locked
from merlin.errors import ShardError, UsageError
from merlin.shards.format.manifest_file import NAME, read_manifest
from merlin.shards.format.shard_info import info_name, read_info, shard_name

STATE = ".import"
_REQUEST = "request.json"
_SHARDS = "shards.jsonl"


@dataclass(frozen=True, slots=True)
class Done:
    """A finished shard, and the rows that were left out of it, by cause."""

    shard: int
    info_digest: str
    dropped: dict[str, list[tuple[int, int]]]


class State:
    """The record of an import, in its directory."""

    def __init__(self, directory: Path, identity: str) -> None:
        self.directory = directory
        self._identity = identity
        self._log: IO[str] | None = None
        self._lock = ExitStack()
        self._is_new = False  # the directory

    def begin(self, *, overwrite: bool) -> dict[int, Done]:
        """Claim the directory: the shards that are done; a manifest in it afterwards is the import's own.

        Raises UsageError if it holds anything else.
        """
        self._is_new = not self.directory.exists()
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.enter_context(locked(self.directory))
        except LockTaken:
            raise UsageError(f"another import is being written to {self.directory}; wait for it") from None
        state = self.directory / STATE
        if (self.directory / NAME).is_file():
            if not overwrite and read_manifest(self.directory).study["study_id"] == study_id(self._identity):
                return {}
            self._require(overwrite, "another data set")
            _remove_data_set(self.directory)
        request = _read_request(state / _REQUEST)
        if request is not None and (overwrite or request != self._identity):
            if _lines(state / _SHARDS):
                self._require(overwrite, "an unfinished import of other files, or with another schema")
            _remove_data_set(self.directory)
            request = None
        if request is None and any(self.directory.iterdir()):
            raise UsageError(f"{self.directory} is not empty; give a new directory with --out")
        done = {item.shard: item for item in _lines(state / _SHARDS) if self._is_there(item)}
        state.mkdir(exist_ok=True)
        write_text(state / _SHARDS, "".join(_line(item) for item in done.values()))
        write_text(state / _REQUEST, json.dumps({"identity": self._identity}))
        self._log = (state / _SHARDS).open("a", encoding="utf-8")
        return done

    def _require(self, overwrite: bool, what: str) -> None:
        if not overwrite:
            raise UsageError(
                f"{self.directory} holds {what}; give another --out, or replace it with --overwrite"
            )

    def _is_there(self, item: Done) -> bool:
        try:
            info = read_info(self.directory / info_name(item.shard))
            size = (self.directory / shard_name(item.shard)).stat().st_size
        except (ShardError, OSError):
            return False
        return info.info_digest == item.info_digest and size == info.size_bytes

    def add(self, item: Done) -> None:
        """Remember a finished shard."""
        assert self._log is not None
        self._log.write(_line(item))
        self._log.flush()
        os.fsync(self._log.fileno())

    def end(self) -> None:
        """The manifest is written: nothing else is needed."""
        shutil.rmtree(self.directory / STATE, ignore_errors=True)

    def discard(self) -> None:
        """Remove what was written, and the directory if it was not there before."""
        self.close()
        _remove_data_set(self.directory)
        if self._is_new:
            with suppress(OSError):  # by now something else is in it
                self.directory.rmdir()

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        self._lock.close()


def study_id(identity: str) -> str:
    """What the manifest of an import says it is."""
    return f"import-{identity[:16]}"


def _remove_data_set(directory: Path) -> None:
    """Remove what a data set or an unfinished import consists of, and nothing else."""
    (directory / NAME).unlink(missing_ok=True)
    for pattern in ("ensemble*.h5", "shard_*.h5", "shard_*.json", f"*{TEMPORARY_SUFFIX}"):
        for path in directory.glob(pattern):
            path.unlink()
    shutil.rmtree(directory / STATE, ignore_errors=True)


def _read_request(path: Path) -> str | None:
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["identity"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError) as e:
        raise ShardError(f"{path} cannot be read: {e}; start anew with --overwrite") from e


def _line(item: Done) -> str:
    return json.dumps(asdict(item)) + "\n"


def _lines(path: Path) -> list[Done]:
    """The finished shards; a line that a killed writer left half is none."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    entries = [json.loads(line) for line in lines if line.endswith("\n")]
    return [
        Done(
            entry["shard"],
            entry["info_digest"],
            {cause: [(a, b) for a, b in ranges] for cause, ranges in entry["dropped"].items()},
        )
        for entry in entries
    ]
