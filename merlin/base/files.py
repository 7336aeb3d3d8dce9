"""Files appear complete or not at all: temporary name, flush to the disk, rename, flush of the directory."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CANNOT_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EACCES}  # of some network file systems, for directories


@contextmanager
def replacing(
    path: Path, *, mode: int | None = None, durable: bool = True, durable_name: bool = True
) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is flushed and renamed to `path`, else removed.

    A process that is killed leaves only the temporary file, which every reader ignores. With `mode` the temporary
    file is there, empty and with these permissions, when the path is yielded. Without `durable_name` the directory
    is not flushed: after a crash of the machine the old file may be back. One that is not `durable` is not flushed at
    all, and need not survive such a crash.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        if mode is not None:
            os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
        yield temporary
        if durable:
            sync_path(temporary)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:  # of a disk that is full, for example
            error.filename = str(path)
        raise
    if durable and durable_name:
        sync_path(path.parent)


def write_text(path: Path, text: str, *, mode: int | None = None, durable_name: bool = True) -> None:
    """Write all of `text`, as UTF-8 with line ends as they are; bytes that were no UTF-8 when read are kept.

    Raises:
        OSError: it cannot be written.
    """
    with replacing(path, mode=mode, durable_name=durable_name) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="surrogateescape", newline="")


def replace_link(link: Path, target: str) -> None:
    """Let the symbolic link `link` lead to `target`, in one step."""
    temporary = temporary_name(link)
    temporary.symlink_to(target)
    temporary.replace(link)


def link_or_copy(path: Path, name: Path) -> None:
    """Let `name` be the same file as `path`, or a copy where the file system has no hard links."""
    temporary = temporary_name(name)
    try:
        try:
            os.link(path, temporary)
        except OSError:
            shutil.copyfile(path, temporary)
        temporary.replace(name)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """The path from the root, ``~`` and ``..`` resolved, symbolic links kept as the user wrote them."""
    return Path(os.path.normpath(Path.cwd() / Path(path).expanduser()))


def make_private(directory: Path) -> None:
    """Make a directory in a place where everybody may write, or see that it is ours, and no link. Raises OSError."""
    directory.mkdir(mode=0o700, exist_ok=True)
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{directory} belongs to somebody else")


def stamp(path: Path) -> tuple[int, int, int] | None:
    """What changes when the file is written or replaced; None if there is none, or we may not see it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def was_removed(path: str | os.PathLike[str]) -> bool:
    """True if nothing is there, although the directory that it lay in can be seen from this machine."""
    return os.path.isdir(os.path.dirname(path)) and not os.path.lexists(path)  # noqa: PTH112, PTH120 - these never raise


def temporary_name(path: Path) -> Path:
    """A name beside `path` that nobody else uses, and that readers ignore."""
    return path.with_name(f"{path.name}.{os.urandom(4).hex()}{TEMPORARY_SUFFIX}")


def written_name(path: str | bytes) -> str:
    """The name that a user knows: for a temporary name, the name of the file that was being written."""
    name = os.fsdecode(path)
    return name.removesuffix(TEMPORARY_SUFFIX).rpartition(".")[0] if name.endswith(TEMPORARY_SUFFIX) else name


def file_error(error: OSError) -> str:
    """The file that could not be used, why, and what to do about it."""
    what = error.strerror or str(error)
    todo = "make room" if error.errno in _NO_ROOM else "mend that"
    return f"{what}; {todo}" if error.filename is None else f"{written_name(error.filename)}: {what}; {todo}"


def sync_path(path: Path) -> None:
    """Flush a file, or the names in a directory, to the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path, name: str) -> None:
    """Remove what killed writers of `name` left behind."""
    for leftover in directory.glob(f"{name}.*{TEMPORARY_SUFFIX}"):
        leftover.unlink(missing_ok=True)
