"""A directory that is written file by file, so that one whose writer was killed can be completed by the next one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Generic, Self, TypeVar

from merlin.base.files import remedy, write_text
from merlin.base.locks import LockTaken, locked
from merlin.base.records import as_kind, parsed, to_plain
from merlin.errors import ShardError, UsageError

Item = TypeVar("Item")

_REQUEST = "request.json"


class UnfinishedDirectory(Generic[Item]):
    """The record of an export or import (`what`) in the directory that it writes; holds a lock while it is entered.

    ``.<what>/request.json`` says what is written, and the log beside it has a line for each finished file.
    """

    def __init__(self, directory: Path, what: str, log_name: str, kind: type[Item]) -> None:
        self.directory, self._what, self._kind = directory, what, kind
        self.folder = directory / f".{what}"
        self._log_path = self.folder / log_name
        self._log: IO[str] | None = None
        self._is_new = False  # the directory was not there before
        self._open = ExitStack()

    def __enter__(self) -> Self:
        """Raises UsageError if another process writes to the directory."""
        self._is_new = not self.directory.exists()
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._open.enter_context(locked(self.directory))
        except LockTaken:
            raise UsageError(
                f"another {self._what} is being written to {self.directory}; wait for it"
            ) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error, leave nothing if nothing was written; else the record, from which a later call goes on."""
        if error is not None:
            with suppress(OSError):  # the directory cannot be read, or is not empty
                if all(path == self.folder for path in self.directory.iterdir()):
                    self.remove_record()
                elif isinstance(error, OSError) and not hasattr(error, "__notes__"):
                    error.add_note(
                        f"{remedy(error)}, then give the same command again: finished files are kept"
                    )
                if self._is_new:
                    self.directory.rmdir()
        self._open.close()

    def request(self) -> dict[str, Any] | None:
        """What an earlier writer began; None if there was none."""
        path = self.folder / _REQUEST
        return read_object(path) if path.is_file() else None

    def finished(self) -> list[Item]:
        """The files that earlier writers finished; a killed one's incomplete line does not count. Raises ShardError."""
        if not self._log_path.is_file():
            return []
        lines = self._log_path.read_bytes().splitlines(keepends=True)
        try:
            return [as_kind(parsed(line), self._kind) for line in lines if line.endswith(b"\n")]
        except ValueError as e:
            raise ShardError(f"{self._log_path} cannot be read: {e}; start anew with --overwrite") from e

    def start(self, request: dict[str, Any], finished: list[Item]) -> None:
        """Record what is written now, and which files of it are there already."""
        self.folder.mkdir(exist_ok=True)
        write_text(self._log_path, "".join(map(_line, finished)))
        write_text(self.folder / _REQUEST, json.dumps(request))
        self._log = self._open.enter_context(self._log_path.open("a", encoding="utf-8"))

    def add(self, item: Item) -> None:
        """Record a finished file."""
        assert self._log is not None
        self._log.write(_line(item))
        self._log.flush()
        os.fsync(self._log.fileno())

    @contextmanager
    def _room(self, name: str) -> Iterator[Path]:
        """Where what replaces the directory's content is written: a killed writer's is there again, others are removed.

        After a ShardError, nothing of it is left.
        """
        room = self.folder / name
        for path in self.folder.glob("*/"):
            if path != room:
                shutil.rmtree(path)
        try:
            yield room
        except ShardError:
            shutil.rmtree(room, ignore_errors=True)
            raise
        finally:
            with suppress(OSError):  # there is the record of something unfinished
                self.folder.rmdir()

    def remove_record(self) -> None:
        """Remove the record, as nothing is unfinished any more."""
        shutil.rmtree(self.folder, ignore_errors=True)


def read_object(path: Path, todo: str = "start anew with --overwrite") -> dict[str, Any]:
    """The JSON object in a file. Raises ShardError, which says what to do."""
    try:
        found = parsed(path.read_bytes())
    except (OSError, ValueError) as e:
        raise ShardError(f"{path} cannot be read: {e}; {todo}") from e
    if not isinstance(found, dict):
        raise ShardError(f"{path} cannot be read: it holds no JSON object; {todo}")
    return found


def _line(item: object) -> str:
    return json.dumps(to_plain(item)) + "\n"
