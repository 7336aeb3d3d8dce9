"""Locks between processes, on a file or a directory; the kernel releases those of a process that ends."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}  # a file system that does not know flock


class LockTaken(Exception):
    """Another process holds the lock; the text names it where it is known."""


@contextmanager
def locked(path: Path, *, wait: bool = False, required: bool = False) -> Iterator[None]:
    """Hold the lock on `path`: a directory, or a file that is made if it is missing.

    A lock file has the process id and host of its holder; they stay there only if that is killed. On a file system
    without locks nobody is kept out, unless the lock is `required`: then OSError is raised.

    Raises:
        LockTaken: another process holds it, and this one does not wait.
        OSError: the path cannot be opened or locked.
    """
    is_file = not path.is_dir()
    flags = os.O_RDWR | os.O_CREAT if is_file else os.O_RDONLY | os.O_DIRECTORY
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() if is_file else ""
            raise LockTaken(holder or "another process") from None
        except OSError as error:
            if required or error.errno not in _NO_LOCKS:
                raise
        if is_file:
            with suppress(OSError):  # a full disk has room for no text, but the lock counts
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        try:
            yield
        finally:
            if is_file:
                with suppress(OSError):
                    os.ftruncate(descriptor, 0)  # other machines know the holder by this text alone
    finally:
        os.close(descriptor)


def is_locked_by(pid: int, path: Path) -> bool:
    """True if process `pid` of this machine holds the lock file at `path`, which is not touched.

    A process opens such a file only to hold the lock, so that one counts that has it open where the kernel's table of
    locks does not show it. False for a file that is not there.
    """
    try:
        inode = path.stat().st_ino
    except OSError:
        return False
    return _is_in_table(pid, inode) or _has_open(pid, path)


def _is_in_table(pid: int, inode: int) -> bool:
    try:
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return False
    return any(
        lock[1] == "FLOCK" and lock[4] == str(pid) and lock[5].rpartition(":")[2] == str(inode)
        for lock in locks
        if len(lock) >= 6 and lock[1] != "->"
    )


def _has_open(pid: int, path: Path) -> bool:
    try:
        fds = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for fd in fds:
        with suppress(OSError):
            if fd.samefile(path):
                return True
    return False
