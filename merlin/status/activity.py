"""Whether anybody works on a study that has not ended, or could work on it, as far as that is known. Pure.

A study is called running only if somebody works on it, or would do so at once. Else it is `stalled`, with advice what
to do; or `unknown` where the servers or machines that know more cannot be asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from merlin.base.text import count, duration

SILENT_S = 120.0  # without a record before a run that cannot be looked at is doubted
SILENT_RECORDS = 3.0  # … or so many times the seconds that the longest record took, if that is more


class Activity(Struct, frozen=True, kw_only=True):
    """Whether anybody works on a study: `none` if no run holds it and no server knows it."""

    state: Literal["none", "running", "stalled", "unknown"]
    reason: str = ""  # of `stalled` and `unknown`: why, and what to do


NOBODY = Activity(state="none")
AT_WORK = Activity(state="running")


class Holder(Struct, frozen=True, kw_only=True):
    """The process that holds a workspace for a run of its own."""

    pid: int
    host: str
    is_here: bool  # this machine can look at it
    is_suspended: bool = False

    def __str__(self) -> str:
        return f"process {self.pid}" if self.is_here else f"process {self.pid} on {self.host}"


class LiveWorkers(Struct, frozen=True, kw_only=True):
    """The workers of a study; for a run on one machine, its worker processes."""

    num_slots: int  # chunks that they run at a time
    running: Mapping[str, int]  # step instance -> chunks
    num_workers: int = 0  # that serve its queues and are not ending
    num_ending: int = 0
    idle_queues: tuple[str, ...] = ()  # with tasks that could run, and no worker
    num_open_queues: int = 0  # with tasks that could run
    waiting: tuple[str, ...] = ()  # why steps wait for workers with more time or devices


def of_holder(holder: Holder, *, last_sign: float | None, longest_s: float, now: float) -> Activity:
    """The activity of a study by the run that holds its workspace.

    `last_sign`: when it wrote something last, in epoch seconds; `longest_s`: the most seconds that a record took.
    """
    if holder.is_suspended:
        return _stalled(f"its run, {holder}, is suspended; it goes on after: kill -CONT {holder.pid}")
    silent_s = now - (last_sign or 0.0)
    if holder.is_here or silent_s <= max(SILENT_S, SILENT_RECORDS * longest_s):
        return AT_WORK
    for_long = f" for {duration(silent_s)}" if last_sign else ""
    ask = f"whether it is alive, that machine knows: ssh {holder.host} ps -p {holder.pid}"
    reason = f"{holder} holds the workspace and has recorded nothing{for_long}; {ask}"
    return Activity(state="unknown", reason=reason)


def of_workers(workers: LiveWorkers | None, num_running_jobs: int, start: str) -> Activity:
    """The activity of a published study; `workers` is None if Redis does not hold it; `start` starts some."""
    if workers is None:
        return NOBODY
    if num_running_jobs or any(workers.running.values()):
        return AT_WORK
    if not workers.num_workers and workers.num_ending:
        are = "is" if workers.num_ending == 1 else "are"
        return _stalled(
            f"{count(workers.num_ending, 'worker')} of its queues {are} ending; start some: {start}"
        )
    if not workers.num_workers and not workers.idle_queues:
        return _stalled(f"no worker serves its queues; start some: {start}")
    if len(workers.idle_queues) >= workers.num_open_queues > 0:
        return _stalled(nobody_serves(workers.idle_queues, workers.num_workers, start))
    if workers.waiting and len(workers.waiting) >= workers.num_open_queues:
        return _stalled("; ".join(workers.waiting))
    return AT_WORK


def _stalled(reason: str) -> Activity:
    return Activity(state="stalled", reason=reason)


def nobody_serves(queues: Sequence[str], num_others: int, start: str) -> str:
    """The message that tasks wait in `queues` without workers; `num_others` workers serve other queues."""
    names = f"{'queue' if len(queues) == 1 else 'queues'} {', '.join(queues)}"
    others = f"; {count(num_others, 'worker')} on others" if num_others else ""
    return f"tasks wait, and no worker serves {names}{others}; start some: {start}"


def of_silence(error: Exception) -> Activity:
    """The activity of a published study whose servers cannot be asked."""
    return Activity(state="unknown", reason=f"what runs now is not known: {error}")
