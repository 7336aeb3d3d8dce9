"""Regular files below a directory, for readers that are not trusted: no name and no link leads out of it.

Every part of a path is opened relative to the one before, and links are not followed, so nobody can exchange a
directory for a link in between. Pipes and devices are not opened: a pipe may never end, and to open a device may
already do something.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from msgspec import Struct

MAX_PARTS = 64
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class FoundFile(Struct, frozen=True):
    """A regular file; `name` is relative to the directory that was listed, with slashes."""

    name: str
    size: int


class Found(Struct, frozen=True):
    """The files of a directory by name. `num_left_out` more were seen; there may be others that were not looked at."""

    files: tuple[FoundFile, ...]
    num_left_out: int


def parts_of(name: str) -> tuple[str, ...]:
    """The parts of a relative path. Raises ValueError for one that is absolute, empty, or goes up."""
    parts = tuple(name.split("/"))
    if len(parts) > MAX_PARTS or "\0" in name or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"{name[:200]!r} is no plain relative path")
    return parts


def open_enclosed(top: Path, folders: Sequence[str], name: str) -> int:
    """A file descriptor of the regular file `name` in the directory `folders`, one below the other, below `top`.

    Raises ValueError for a name that is no plain relative path, and OSError if there is no such regular file.
    """
    *below, last = parts_of("/".join([*folders, name]))
    with _opened(top, below) as folder:
        _require_regular(os.stat(last, dir_fd=folder, follow_symlinks=False), name)
        fd = os.open(last, _FILE, dir_fd=folder)
        try:
            _require_regular(os.fstat(fd), name)  # somebody may have exchanged it
        except OSError:
            os.close(fd)
            raise
        return fd


def list_enclosed(top: Path, folders: Sequence[str], *, most: int, max_depth: int, max_entries: int) -> Found:
    """The regular files in that directory and up to `max_depth` below it; at most `max_entries` names are looked at.

    Raises OSError if there is no such directory.
    """
    with _opened(top, folders) as folder:
        found = sorted(
            _walk(folder, "", max_depth, [max_entries]), key=lambda file: (file.name.count("/"), file.name)
        )
    return Found(tuple(found[:most]), max(0, len(found) - most))


@contextmanager
def _opened(top: Path, folders: Sequence[str]) -> Iterator[int]:
    """A file descriptor of the directory `folders` below `top`."""
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in folders:
            below = os.open(name, _FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


def _walk(folder: int, prefix: str, depth: int, num_left: list[int]) -> Iterator[FoundFile]:
    with os.scandir(folder) as entries:
        listed = list(islice(entries, num_left[0]))
    num_left[0] -= len(listed)
    for entry in listed:
        with suppress(OSError):  # it was removed meanwhile, or is not ours to read
            if entry.is_file(follow_symlinks=False):
                yield FoundFile(prefix + entry.name, entry.stat(follow_symlinks=False).st_size)
            elif depth and entry.is_dir(follow_symlinks=False):
                below = os.open(entry.name, _FOLDER, dir_fd=folder)
                try:
                    yield from _walk(below, f"{prefix}{entry.name}/", depth - 1, num_left)
                finally:
                    os.close(below)


def _require_regular(found: os.stat_result, name: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise OSError(f"{name} is no regular file")
