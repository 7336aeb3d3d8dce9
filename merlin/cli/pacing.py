"""Commands that look at studies, called in a loop on a machine that computes: together they take a hundredth of it.

Slurm's controller limits `squeue` in the same way. A user has a credit, from which each look pays its processor time
if it had to wait for a core, so that on a machine with a free core nobody waits. The credit is a time, kept as that of
a directory: until then, the looks so far have used the hundredth.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from merlin.base.files import make_private
from merlin.base.locks import LockTaken, locked

SWITCH = "MERLIN_NO_PACING"  # an environment variable: no look waits

_SHARE = 0.01  # of all cores that this process may use
_CREDIT_S = 30.0  # what is not used for so long can be used at once
_MAX_WAIT_S = 5.0
# a look that waited for a core for more than this part of the time that it computed had to share the core
_CONTENDED = 0.1


@contextmanager
def paced(name: str) -> Iterator[None]:
    """Run a command that looks, after a wait of at most five seconds if its user's looks have used up their share."""
    folder = None if os.environ.get(SWITCH) else _folder()
    if folder is None:
        yield
        return
    begin = time.time()
    if (seconds := _wait_s(folder, begin)) > 0:
        if seconds > 1 and sys.stderr is not None and sys.stderr.isatty():
            print(
                f"waiting {seconds:.0f} s: other programs need the cores of this machine, and `merlin {name}` was "
                "called often; `merlin status --watch` costs less",
                file=sys.stderr,
            )
        time.sleep(seconds)
    try:
        yield
    finally:
        if _waited_for_cores():
            with suppress(OSError, LockTaken), locked(folder):
                _pay(folder, begin)


def _wait_s(folder: Path, now: float) -> float:
    try:
        return min(_MAX_WAIT_S, folder.stat().st_mtime - now)
    except OSError:  # somebody has just tidied up
        return 0.0


def _pay(folder: Path, begin: float) -> None:
    cores = len(os.sched_getaffinity(0))
    used = max(folder.stat().st_mtime, begin - _CREDIT_S) + time.process_time() / (_SHARE * cores)
    os.utime(folder, (begin, min(used, time.time() + _MAX_WAIT_S)))


def _folder() -> Path | None:
    """The user's directory on this machine; None where there is none, or somebody else's stands in its place."""
    folder = Path(os.environ.get("TMPDIR") or "/tmp", f"merlin-looks-{os.getuid()}")
    with suppress(OSError):
        is_new = not folder.exists()
        make_private(folder)
        if is_new:
            os.utime(folder, (0, 0))
        return folder
    return None


def _waited_for_cores() -> bool:
    """True if this process waited for cores that others used; False where the kernel does not say."""
    try:
        computed, waited = map(int, Path("/proc/self/schedstat").read_text(encoding="ascii").split()[:2])
    except (OSError, ValueError):
        return False
    return waited > _CONTENDED * computed
