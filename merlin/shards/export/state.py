"""How far an export is: what makes a killed one go on, and what a finished one says about itself.

While it runs, ``.export/request.json`` names what is written, and ``.export/files.jsonl`` gets a line for each
finished file. Then ``export.json`` takes their place; a directory without it holds no finished export.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from merlin.base.files import TEMPORARY_SUFFIX, write_text
from merlin.base.locks import LockTaken, locked
from merlin.errors import ShardError, UsageError
from merlin.shards.export.base import Part

FORMAT = "merlin-export"
VERSION = 1
NAME = "export.json"
STATE = ".export"
_REQUEST = "request.json"
_FILES = "files.jsonl"


class State:
    """The record of an export's finished files, in its directory."""

    def __init__(self, directory: Path, request: dict[str, Any]) -> None:
        self.directory = directory
        self._request = json.loads(json.dumps(request))
        self._log: IO[str] | None = None
        self._lock = ExitStack()

    def begin(self, is_present: Callable[[Part], bool], *, overwrite: bool) -> tuple[list[Part], bool]:
        """Claim the directory: the files that are done already, and whether nothing at all is left to do.

        Raises UsageError if it holds anything else.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.enter_context(locked(self.directory))
        except LockTaken:
            raise UsageError(f"another export is being written to {self.directory}; wait for it") from None
        replaced = overwrite and remove_export(self.directory)
        finished = read_export(self.directory)
        if finished is not None:
            self._require_same(finished["request"], "an export")
            parts = [part for part in map(_part, finished["files"]) if is_present(part)]
            whole = len(parts) == len(finished["files"]) and all(
                (self.directory / name).exists() for name in finished["described_by"]
            )
            if whole:
                return parts, True
            self._start(parts)
            return parts, False
        state = self.directory / STATE
        if (state / _REQUEST).is_file():
            self._require_same(_read(state / _REQUEST)["request"], "an unfinished export")
            by_place = {part.lo: part for part in _lines(state / _FILES)}
            parts = [part for part in by_place.values() if is_present(part)]
        elif not replaced and any(self.directory.iterdir()):
            raise UsageError(
                f"{self.directory} is not empty and holds no export; give a new directory with --out"
            )
        else:
            parts = []
        self._start(parts)
        return parts, False

    def _require_same(self, other: dict[str, Any], what: str) -> None:
        if other == self._request:
            return
        keys = sorted(key for key in {*other, *self._request} if other.get(key) != self._request.get(key))
        raise UsageError(
            f"{self.directory} holds {what} that differs from this one in {', '.join(map(_words, keys))}; "
            "give another --out, or replace it with --overwrite"
        )

    def _start(self, parts: list[Part]) -> None:
        state = self.directory / STATE
        state.mkdir(exist_ok=True)
        write_text(state / _FILES, "".join(_line(part) for part in parts))
        write_text(state / _REQUEST, json.dumps({"request": self._request}))
        (self.directory / NAME).unlink(missing_ok=True)
        self._log = (state / _FILES).open("a", encoding="utf-8")

    def add(self, part: Part) -> None:
        """Remember a finished file."""
        assert self._log is not None
        self._log.write(_line(part))
        self._log.flush()
        os.fsync(self._log.fileno())

    def end(self, parts: list[Part], described_by: list[str], about: dict[str, Any]) -> dict[str, Any]:
        """Write ``export.json`` and forget the rest."""
        body = {
            "format": FORMAT,
            "version": VERSION,
            "request": self._request,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "num_samples": sum(part.num_samples for part in parts),
            "size_bytes": sum(part.size_bytes for part in parts),
            **about,
            "described_by": described_by,
            "files": [asdict(part) for part in parts],
        }
        text = json.dumps(body, indent=1)
        write_text(self.directory / NAME, text)
        shutil.rmtree(self.directory / STATE, ignore_errors=True)
        return dict(json.loads(text))

    def close(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        self._lock.close()


def read_export(directory: Path) -> dict[str, Any] | None:
    """The description of the finished export in `directory`, or None. Raises ShardError if it is unreadable."""
    path = directory / NAME
    if not path.is_file():
        return None
    found = _read(path)
    if (found.get("format"), found.get("version")) != (FORMAT, VERSION):
        raise ShardError(
            f"{path}: expected {FORMAT} version {VERSION}, found {found.get('format')} {found.get('version')}"
        )
    return found


def remove_export(directory: Path) -> bool:
    """Remove the files of a finished or unfinished export, and nothing else; False if there is none."""
    finished = read_export(directory)
    if finished is None and not (directory / STATE).is_dir():
        return False
    names = [part.file for part in _lines(directory / STATE / _FILES)]
    if finished is not None:
        names += [*(entry["file"] for entry in finished["files"]), *finished["described_by"]]
    (directory / NAME).unlink(missing_ok=True)
    for name in names:
        _remove(directory / name)
    for leftover in sorted(directory.glob(f"**/*{TEMPORARY_SUFFIX}")):
        _remove(leftover)
    shutil.rmtree(directory / STATE, ignore_errors=True)
    for folder in sorted((p for p in directory.glob("**/") if p != directory), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
    return True


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _words(key: str) -> str:
    """A key of a request, as people say it."""
    return "the data set's content" if key == "content_digest" else key.replace("_", " ")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise ShardError(f"{path} cannot be read: {e}; start anew with --overwrite") from e
    if not isinstance(found, dict):
        raise ShardError(f"{path} is not a description of an export; start anew with --overwrite")
    return found


def _line(part: Part) -> str:
    return json.dumps(asdict(part)) + "\n"


def _lines(path: Path) -> list[Part]:
    """The finished files; a line that a killed writer left half is none."""
    if not path.is_file():
        return []
    parts = []
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            parts.append(_part(json.loads(line)))
    return parts


def _part(entry: dict[str, Any]) -> Part:
    return Part(**entry)
