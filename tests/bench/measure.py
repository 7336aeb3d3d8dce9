"""Timing whole commands: wall seconds, peak memory, medians, and ratios taken pair by pair."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
SPECS = HERE / "specs"
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # byte code is cached, as in anybody's installation
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs with it ignored
MERLIN = str(Path(sys.executable).parent / "merlin")


@dataclass(frozen=True)
class Timing:
    seconds: float
    peak_bytes: int  # the largest single process of the command's tree that was waited for


def run(command: Sequence[str], cwd: Path, env: dict[str, str] | None = None) -> Timing:
    """Run `command` to its end; a non-zero exit is an error that shows the output's tail."""
    with open(cwd / "bench.log", "wb") as log:
        start = time.perf_counter()
        child = subprocess.Popen(command, cwd=cwd, env=env, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        tail = (cwd / "bench.log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{' '.join(command)} exited {child.returncode}\n{tail}")
    return Timing(seconds, usage.ru_maxrss * 1024)


def until(command: Sequence[str], cwd: Path, condition: Callable[[], bool], limit_s: float = 600) -> Timing:
    """Seconds from the start of `command` until `condition` holds; then it is interrupted and reaped."""
    with open(cwd / "bench.log", "wb") as log:
        start = time.perf_counter()
        child = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        while not condition():
            if child.poll() is not None or time.perf_counter() - start > limit_s:
                child.kill()
                raise RuntimeError((cwd / "bench.log").read_text(errors="replace")[-2000:])
            time.sleep(0.002)
        seconds = time.perf_counter() - start
        child.send_signal(signal.SIGINT)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    return Timing(seconds, usage.ru_maxrss * 1024)


def local_run(spec: str, num: int, *variables: str) -> list[str]:
    """The command that runs so many samples of a spec in `specs/` on two workers of this machine."""
    command = [MERLIN, "run", "--local", "--workers", "2", str(SPECS / f"{spec}.yaml")]
    return [*command, "--vars", f"N_SAMPLES={num}", *variables]


def made_apart(make: Callable[..., Path], *args: Any, **options: Any) -> Path:
    """What `make` returns in a process of its own: a command's peak memory is never told as less than its parent's."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(make, args, options)


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def fresh(folder: Path) -> Path:
    """A new folder `folder-<n>`; nothing is deleted, because ext4 is slow to create files for minutes after it."""
    for number in itertools.count():
        made = folder.with_name(f"{folder.name}-{number}")
        if not made.exists():
            made.mkdir(parents=True)
            return made
    raise AssertionError


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """Median of the ratios of neighbours in time, which holds when the machine's speed drifts."""
    return median(a / b for a, b in zip(numerators, denominators, strict=True))


def median_s(timings: Sequence[Timing]) -> float:
    return median([t.seconds for t in timings])


def ratio_s(numerators: Sequence[Timing], denominators: Sequence[Timing]) -> float:
    return ratio([t.seconds for t in numerators], [t.seconds for t in denominators])


def only_workspace(folder: Path) -> Path:
    (found,) = (p.parent for p in folder.glob("*/merlin_info"))
    return found
