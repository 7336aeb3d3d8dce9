"""Files appear whole or not at all: temporary name, fsync, rename, fsync of the directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def replacing(path: Path, *, durable_name: bool = True) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed and renamed to `path`, else removed.

    A process that is killed leaves only the temporary file, which every reader ignores.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        fsync_path(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable_name:
        fsync_path(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write `text` as UTF-8 under `path`, atomically and durably."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def fsync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path, name: str) -> None:
    """Remove what killed writers of `name` left behind."""
    for leftover in directory.glob(f"{name}.*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)
