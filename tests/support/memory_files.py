"""Temporary files of a test run in memory: on a disk, tests would wait a fifth of their time for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil

from merlin.base.files import make_private
from merlin.base.locks import LockTaken, locked

MEMORY = Path("/dev/shm")
ROOM = 4 << 30  # bytes; a run of all tests writes one gigabyte


def files_in_memory() -> Callable[[], None]:
    """Let temporary files of this process and its children be in memory; returns what removes them in the end.

    They stay on disk if TMPDIR is set or the machine has too little memory. What a killed test run left is removed.
    """
    if "TMPDIR" not in os.environ and MEMORY.is_dir() and _room():
        for number in range(100):
            # short, because sockets have their paths inside, and of one length, because paths are wrapped in tables
            folder = MEMORY / f"mtests-{number:05d}"
            with suppress(OSError, LockTaken), ExitStack() as stack:
                make_private(folder)  # everybody may write into /dev/shm
                stack.enter_context(locked(folder))  # as long as this process lives
                for left in folder.iterdir():
                    shutil.rmtree(left, ignore_errors=True)
                os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                return stack.pop_all().close
    return lambda: None


def _room() -> bool:
    return shutil.disk_usage(MEMORY).free > ROOM and psutil.virtual_memory().available > 2 * ROOM
