"""Files and directories appear complete or not at all.

They are written under a temporary name, flushed to the disk and renamed; then the directory around them is flushed.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from merlin.errors import UsageError

Flush = Literal["all", "names", "nothing"]

TEMPORARY_SUFFIX = ".tmp"
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.tmp(?=/|$)|\.tmp$")
_REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "allow larger files (ulimit -f unlimited)",
}
_TAKEN = {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}  # a file system without hard links
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
            _create(temporary, b"", mode)
        yield temporary
        if durable:
            sync_path(temporary)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        _say_where(error, path)
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


def create_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Write all of `text`, as UTF-8, to a new file; of several processes that do it at once, one succeeds.

    Only a process that is killed on a file system without hard links leaves a part of the text.

    Raises:
        FileExistsError: something has this name; it stays as it is.
        OSError: it cannot be written.
    """
    data, temporary = text.encode(), temporary_name(path)
    try:
        _create(temporary, data, mode)
        try:
            os.link(temporary, path)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _create(path, data, mode)
        sync_path(path.parent)
    except OSError as error:
        _say_where(error, path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create a file with these bytes, flushed; it is removed if they cannot be written. Raises FileExistsError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if data:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def replace_link(link: Path, target: str) -> None:
    """Let the symbolic link `link` lead to `target`, in one step. Raises OSError."""
    with replacing(link, durable=False) as temporary:
        temporary.symlink_to(target)


def link_or_copy(path: Path, name: Path) -> None:
    """Let `name` be the same file as `path`, or a flushed copy where the file system has no hard links.

    Raises OSError.
    """
    if name.exists() and name.samefile(path):  # then a rename would do nothing
        return
    with replacing(name, durable=False) as temporary:
        try:
            os.link(path, temporary)
            return
        except OSError:
            pass
        shutil.copyfile(path, temporary)  # not above, where an error would seem to come of the first one
        sync_path(temporary)


@contextmanager
def making_directory(path: Path, flush: Flush = "all") -> Iterator[Path]:
    """Yield a new directory beside `path`; on success `name_directory` gives it this name, else it is removed.

    A process that is killed leaves only the directory with the temporary name: see `remove_leftovers`.

    Raises:
        FileExistsError: something else has this name already, and stays as it is.
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        temporary.mkdir()
        yield temporary
        name_directory(temporary, path, flush)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _say_where(error, path)
        raise


def name_directory(temporary: Path, path: Path, flush: Flush = "all") -> None:
    """Give a complete directory its name `path`, in one step, after what is in it is flushed.

    With `flush` "names" its files are flushed already; with "nothing" it need not survive a crash of the machine.

    Raises:
        FileExistsError: something else has this name already, and stays as it is; an empty directory is replaced.
        OSError: it cannot be flushed or renamed.
    """
    try:
        if flush != "nothing":
            _sync_tree(temporary, with_files=flush == "all")
        temporary.rename(path)
        if flush != "nothing":
            sync_path(path.parent)
    except OSError as error:
        if error.errno in _TAKEN and os.path.lexists(path) and os.path.lexists(temporary):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path)) from error
        _say_where(error, path)
        raise


def _sync_tree(top: Path, *, with_files: bool) -> None:
    """Flush a directory with all directories, and perhaps files, in it; a link is only a name."""

    def refuse(error: OSError) -> None:
        raise error

    for folder, _, names in os.walk(top, topdown=False, onerror=refuse):
        for path in (Path(folder, name) for name in names if with_files):
            if stat.S_ISREG(path.lstat().st_mode):
                sync_path(path)
        sync_path(Path(folder))


def _say_where(error: BaseException, path: Path) -> None:
    """Let an error without a file name, of a disk that is full for example, have one."""
    if isinstance(error, OSError) and error.filename is None:
        error.filename = str(path)


def absolute_path(path: str | os.PathLike[str]) -> Path:
    """The path from the root, ``~`` and ``..`` resolved, symbolic links kept as the user wrote them.

    Raises UsageError where ``~NAME`` is no user.
    """
    return Path(os.path.normpath(Path.cwd() / from_home(path)))


def from_home(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` resolved. Raises UsageError where ``~NAME`` is no user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        home = Path(path).parts[0]
        message = f"{path}: the home directory {home} is not known here; write the path without {home}"
        raise UsageError(message) from error


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
    """The name that a user knows: for a name of `temporary_name`, or one below, that of what was being written."""
    return _TEMPORARY.sub("", os.fsdecode(path))


def file_error(error: OSError) -> str:
    """The file that could not be used, why, and what to do about it."""
    what = f"{error.strerror or error}; {remedy(error)}"
    return what if error.filename is None else f"{written_name(error.filename)}: {what}"


def remedy(error: OSError, otherwise: str = "mend that") -> str:
    """What to do about a file that could not be used."""
    return _REMEDIES.get(error.errno or 0, otherwise)


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


def end_of(path: str | os.PathLike[str], num_bytes: int, *, start: int = 0) -> str:
    """The last bytes of a file as text, from the offset `start` on if it has so many; "" if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        size = os.fstat(descriptor).st_size
        at = max(start if start <= size else 0, size - num_bytes)
        return os.pread(descriptor, num_bytes, at).decode("utf-8", "replace")
    except OSError:  # somebody has put something other than a file there
        return ""
    finally:
        os.close(descriptor)


def remove_leftovers(directory: Path, name: str, *, older_than_s: float = 0.0) -> None:
    """Remove what killed writers of the file or directory `name` left behind. Raises OSError."""
    for leftover in directory.glob(f"{name}.*{TEMPORARY_SUFFIX}"):
        with suppress(FileNotFoundError):  # another process does the same
            found = leftover.lstat()
            if older_than_s and time.time() - found.st_mtime < older_than_s:
                continue
            if stat.S_ISDIR(found.st_mode):
                shutil.rmtree(leftover)
            else:
                leftover.unlink()
