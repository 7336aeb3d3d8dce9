"""The files that a path with or without wildcards names; what is hidden or belongs to a study needs its own name."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

from merlin.base.document.findings import did_you_mean
from merlin.base.document.scalars import Problem
from merlin.workspace.directory import INFO_DIR

MAX_FILES = 1_000  # that one pattern may match
MAX_ENTRIES = 100_000  # of directories that are looked at for one pattern
_WILDCARDS = frozenset("*?[")
_MISSING = (errno.ENOENT, errno.ENOTDIR)


def named_files(path: Path) -> list[Path]:
    """The regular files that an absolute path means, sorted. A name that exists has no wildcards in it.

    ``*`` and ``?`` stand for characters of one name, ``[ab]`` for one of these, and ``**`` for any directories.
    Wildcards pass over hidden names, ``__pycache__`` and the workspaces of studies, and ``**`` follows no links.

    Raises:
        Problem: it names no file, or too many.
    """
    try:
        mode = path.stat().st_mode
    except ValueError as error:  # a zero byte
        raise Problem(f"cannot be a path ({error})") from error
    except OSError as error:
        if error.errno not in _MISSING:
            return _unknown(path, error)
    else:
        return _known(path, mode)
    if not _WILDCARDS & set(str(path)):
        raise Problem("does not exist", _hint(path))
    found = sorted(set(_matches(path)))
    if not found:
        raise Problem("matches no file", "a relative path counts from the directory of the spec")
    return found


def _known(path: Path, mode: int) -> list[Path]:
    if stat.S_ISREG(mode):
        return [path]
    if stat.S_ISDIR(mode):
        raise Problem("is a directory", f"name its files, e.g. {path.name}/* or {path.name}/**")
    raise Problem("is not a regular file")


def _unknown(path: Path, error: OSError) -> list[Path]:
    """The path itself: its file may exist, but cannot be seen from here. Raises Problem if it cannot exist."""
    if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
        raise Problem(f"cannot be a file ({error.strerror})") from error
    return [path]


def _hint(path: Path) -> str:
    names: list[str] = []
    with suppress(OSError):
        names = [other.name for other in islice(path.parent.iterdir(), MAX_FILES)]
    return did_you_mean(path.name, names) or "a relative path counts from the directory of the spec"


def _matches(pattern: Path) -> Iterator[Path]:
    """The files that match the pattern. Raises Problem if there are too many."""
    num_files = num_entries = 0
    todo: list[tuple[Path, tuple[str, ...]]] = [(Path(pattern.anchor), pattern.parts[1:])]
    while todo:
        folder, (head, *rest) = todo.pop()
        if rest and (not _WILDCARDS & set(head) or (head != "**" and _is_there(folder / head))):
            todo.append((folder / head, tuple(rest)))
            continue
        if head == "**":
            todo.append((folder, tuple(rest) or ("*",)))
        for entry in _entries(folder):
            num_entries += 1
            if num_entries > MAX_ENTRIES:
                message = f"makes Merlin look at more than {MAX_ENTRIES:,} names"
                raise Problem(message, "name the directories in which the files are")
            if head == "**":
                if _is_visible(entry, "*") and _is_folder(entry, follow=False):
                    todo.append((folder / entry.name, (head, *rest)))
            elif not _is_visible(entry, head):
                continue
            elif rest:
                if _is_folder(entry, follow=True):
                    todo.append((folder / entry.name, tuple(rest)))
            elif _is_file(entry):
                num_files += 1
                if num_files > MAX_FILES:
                    raise Problem(f"matches more than {MAX_FILES:,} files", "name the ones that are code")
                yield folder / entry.name


def _is_there(path: Path) -> bool:
    with suppress(OSError):
        return path.exists()
    return False


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory; none if it is not a directory or cannot be read."""
    with suppress(OSError), os.scandir(folder) as found:
        return list(found)
    return []


def _is_visible(entry: os.DirEntry[str], part: str) -> bool:
    """Does the part of a pattern match this name?"""
    is_hidden = entry.name.startswith(".") and not part.startswith(".")
    return not is_hidden and fnmatchcase(entry.name, part)


def _is_folder(entry: os.DirEntry[str], *, follow: bool) -> bool:
    """Return whether an entry is a directory, but not one of a study or of compiled modules."""
    with suppress(OSError):
        return (
            entry.is_dir(follow_symlinks=follow)
            and entry.name != "__pycache__"
            and not (Path(entry.path) / INFO_DIR).is_dir()
        )
    return False


def _is_file(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):  # a circle of links
        return entry.is_file()
    return False
