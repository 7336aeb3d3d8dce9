"""This machine as `merlin doctor` sees it: packages, and the directory for workspaces."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from merlin.base.text import size
from merlin.views.doctor.finding import Finding, broken_if, warning_if

PACKAGES = {"celery": (5, 4), "redis": (5, 0), "kombu": (5, 3)}  # the least versions
MIN_FREE_BYTES = 1_000_000_000
SLOW_SYNC_S = 1.0


def examine_package(name: str, least: tuple[int, ...]) -> Finding:
    """A Python package."""
    try:
        return judge_package(name, version(name), least)
    except PackageNotFoundError:
        return judge_package(name, None, least)


def judge_package(name: str, found: str | None, least: tuple[int, ...]) -> Finding:
    """A Python package of version `found`, or None if it is not installed."""
    wanted = ".".join(map(str, least))
    hint = f"install it: python -m pip install '{name}>={wanted}'"
    if found is None:
        return broken_if(hint, name, "the package is not installed")
    if numbers(found) < least:
        return broken_if(hint, name, f"too old, {wanted} is needed", version=found)
    return broken_if("", name, "installed", version=found)


def numbers(text: str) -> tuple[int, ...]:
    """The version "5.4.0rc1" as (5, 4, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def examine_directory(path: Path) -> Finding:
    """Tries to write, lock and sync a small file in a directory for workspaces, and looks how much is free."""
    begin = time.perf_counter()
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=".merlin-doctor-") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
        seconds = time.perf_counter() - begin
        return judge_directory(path, shutil.disk_usage(path).free, seconds)
    except OSError as error:
        hint = "choose another for the variable OUTPUT_PATH"
        return broken_if(hint, "directory", f"{path} cannot be written: {error.strerror}")


def judge_directory(path: Path, free_bytes: int, sync_s: float) -> Finding:
    """A directory that can be written; `sync_s` seconds were needed for a small file."""
    hint = ""
    if free_bytes < MIN_FREE_BYTES:
        hint = f"only {size(free_bytes)} are free"
    elif sync_s > SLOW_SYNC_S:
        hint = f"writing a small file takes {sync_s:.1f} s; every worker does that every few seconds"
    detail = f"{path} can be written and locked, {size(free_bytes)} are free"
    return warning_if(hint, "directory", detail, latency_ms=1000 * sync_s)
