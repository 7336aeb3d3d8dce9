"""Temporary files of a test run in memory: on a disk, tests would wait a fifth of their time for it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

MEMORY = Path("/dev/shm")
PREFIX = "mtests-"  # short, because sockets have their paths inside
ROOM = 4 << 30  # bytes; a run of all tests writes one gigabyte


def files_in_memory() -> Callable[[], None]:
    """Let temporary files of this process and its children be in memory; returns what removes them in the end.

    They stay on disk if TMPDIR is set or the machine has too little memory. What killed test runs left is removed.
    """
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or not _room():
        return lambda: None
    for left in MEMORY.glob(f"{PREFIX}*"):
        with suppress(ValueError):
            if not psutil.pid_exists(int(left.name.removeprefix(PREFIX))):
                shutil.rmtree(left, ignore_errors=True)
    folder = MEMORY / f"{PREFIX}{os.getpid()}"
    folder.mkdir(mode=0o700)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    return lambda: shutil.rmtree(folder, ignore_errors=True)


def _room() -> bool:
    return shutil.disk_usage(MEMORY).free > ROOM and psutil.virtual_memory().available > 2 * ROOM
