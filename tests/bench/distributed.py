"""Studies on Celery workers and Redis, against the peer's distributed mode."""

from __future__ import annotations

import itertools
import math
import os
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from deployment import Deployment, deployment, wait_for
from measure import SPECS, fresh, median, only_workspace, ratio
from report import Row

from merlin.plan.layout import SampleLayout

LEASE_S = 10.0  # of the workers that are killed
Victim = Literal["", "owner", "other"]


def _publish(made: Deployment, spec: str, num: int) -> float:
    return made.command("run", str(SPECS / f"{spec}.yaml"), "--vars", f"N_SAMPLES={num}")


def drain_once(folder: Path, num: int) -> tuple[float, dict[str, Any]]:
    """Seconds from the start of a worker until the step after the fan-out has run, and what Redis did for it."""
    folder = fresh(folder)
    with deployment(folder) as made:
        _publish(made, "chain_shell", num)
        workspace = only_workspace(folder)
        start = time.perf_counter()
        made.start_worker()
        wait_for(lambda: (workspace / "after" / "started").exists(), 900, "the next step")
        seconds = time.perf_counter() - start
        with made.client() as client:
            stats = client.info("all")
        return seconds, stats | {"workers_cpu_s": made.workers_cpu_s()}


def _peer_drain(folder: Path, num: int) -> float:
    """Seconds from the start of the peer's worker until its next step has run."""
    folder = fresh(folder)
    shutil.copy(SPECS / "chain_shell_peer.yaml", folder)
    with deployment(folder, is_peer=True) as made:
        made.command("run", "chain_shell_peer.yaml", "--vars", f"N_SAMPLES={num}")
        start = time.perf_counter()
        made.start_worker()
        workspace = only_workspace(folder)
        wait_for(lambda: (workspace / "after" / "started").exists(), 3600, "the peer's next step")
        return time.perf_counter() - start


def drain(tmp: Path, rounds: int, num: int) -> list[Row]:
    ours, peer = [], []
    for _ in range(rounds):
        ours.append(drain_once(tmp / "ours", num)[0])
        peer.append(_peer_drain(tmp / "peer", num))
    rates = f"{num / median(ours):,.0f}/s", f"{num / median(peer):,.0f}/s"
    floor = "≥ 20×" if num >= 30_000 else "≥ 12×"
    what = f"null shell on Celery and Redis, {num:,} samples, worker start to the next step, against merlin==1.13.0"
    return [Row(what, *rates, f"{ratio(peer, ours):.1f}×", floor)]


def drain_large(tmp: Path, rounds: int, num: int) -> list[Row]:
    return drain(tmp, 1, num)


def null_function(tmp: Path, rounds: int, num: int) -> list[Row]:
    seconds = [function_once(tmp / "function", num) for _ in range(rounds)]
    rate = f"{num / median(seconds):,.0f}/s"
    return [Row(f"null function on Celery, {num:,} samples, worker start to end", rate, floor="≥ 200,000/s")]


def function_once(folder: Path, num: int) -> float:
    """Seconds from the start of a worker to the end of the study."""
    with deployment(fresh(folder)) as made:
        _publish(made, "null_function", num)
        start = time.perf_counter()
        made.start_worker()
        wait_for(is_over(made), 600, "the end of the study")
        return time.perf_counter() - start


def is_over(made: Deployment) -> Callable[[], bool]:
    """Whether no study is open any more."""
    client, key = made.client(), f"merlin:{made.namespace()}:studies"
    return lambda: not client.exists(key)


def publish(tmp: Path, rounds: int, num: int) -> list[Row]:
    rows = []
    for n, floor in ((num // 100, "≤ 1 s"), (num, "≤ 3 s")):
        runs = [publish_once(tmp / "publish", n) for _ in range(rounds)]
        seconds, used = [s for s, _ in runs], [u for _, u in runs]
        what = f"merlin run of {n:,} samples with a broker"
        rows.append(Row(what, f"{median(seconds):.2f} s", floor=floor))
    rows.append(Row("memory of the broker for it", f"{max(used) / 1e6:.2f} MB", floor="< 5 MB"))
    return rows


def publish_once(folder: Path, num: int) -> tuple[float, int]:
    """Seconds of the command, and bytes that the server holds for it."""
    with deployment(fresh(folder)) as made, made.client() as client:
        before = client.info("memory")["used_memory"]
        seconds = _publish(made, "null_shell", num)
        return seconds, client.info("memory")["used_memory"] - before


def first_sample(tmp: Path, rounds: int, num: int) -> list[Row]:
    seconds = [first_sample_once(tmp / "first", num) for _ in range(rounds)]
    what = f"worker start to first finished sample, {num:,} samples (peer: 286 s)"
    return [Row(what, f"{median(seconds):.2f} s", "286 s", f"{286 / median(seconds):.0f}×", "≤ 4 s")]


def first_sample_once(folder: Path, num: int) -> float:
    """Seconds from the start of a worker to the end of the first sample."""
    folder = fresh(folder)
    with deployment(folder) as made:
        _publish(made, "null_shell", num)
        step = only_workspace(folder) / "null_step" / SampleLayout(num, 25).path(0) / "MERLIN_FINISHED"
        start = time.perf_counter()
        made.start_worker()
        wait_for(step.exists, 60, "the first sample")
        return time.perf_counter() - start


def recovery(tmp: Path, rounds: int, num: int) -> list[Row]:
    runs: dict[Victim, list[Recovery]] = {"": [], "other": [], "owner": []}
    for _ in range(rounds):
        for victim, found in runs.items():
            found.append(recover_once(tmp / f"kill-{victim}", num, victim))
    calm = median([r.seconds for r in runs[""]])
    floor = f"≤ {LEASE_S + 1.1 * calm:.1f} s (a lease + 110 % of undisturbed)"
    rows = []
    for victim, what in (("other", "that does not own the study"), ("owner", "that owns the study")):
        seconds = median([r.seconds for r in runs[victim]])
        job = f"{num:,} samples of 50 ms, lease {LEASE_S:g} s, to the last sample"
        killed = f"kill -9 of one of two workers, the one {what}, {job}"
        rows.append(Row(killed, f"{seconds:.1f} s", f"{calm:.1f} s undisturbed", "", floor))
    idle = f"{median([r.idle_s for r in runs['owner']]):.1f} s"
    other = f"{median([r.idle_s for r in runs['other']]):.1f} s after the other's death"
    what = "the longest that no sample of the other worker ended after the owner's death"
    return [*rows, Row(what, idle, other, "", "≤ 6 s")]


@dataclass(frozen=True)
class Recovery:
    """How a study of two workers went, one of which was killed perhaps."""

    seconds: float  # from the start of the workers to the end of the study
    idle_s: float  # the longest time in which no sample ended, until the lease of what was killed ran out


def recover_once(folder: Path, num: int, victim: Victim) -> Recovery:
    """Kill nobody (""), the worker that owns the study, or the other one, a second after the first sample."""
    folder = fresh(folder)
    with deployment(folder) as made:
        _publish(made, "sleep_shell", num)
        start = time.perf_counter()
        workers = {
            name: made.start_worker(name, log_level="INFO", MERLIN_LEASE_S=str(LEASE_S))
            for name in ("w1", "w2")
        }
        step = only_workspace(folder) / "sleep_step"
        wait_for(lambda: any(step.rglob("MERLIN_FINISHED")), 60, "the first sample")
        killed = math.inf
        if victim:
            time.sleep(1.0)
            owners = [name for name in workers if "this worker owns" in (folder / f"{name}.log").read_text()]
            owner = owners[-1] if owners else "w1"  # before there were owners, all workers were alike
            name = owner if victim == "owner" else next(n for n in workers if n != owner)
            os.kill(workers[name].pid, signal.SIGKILL)
            killed = time.time()
        wait_for(is_over(made), 300, "the end of the study")
        seconds = time.perf_counter() - start
        return Recovery(seconds, _longest_pause(step, killed))


def _longest_pause(step: Path, killed: float) -> float:
    """The longest time without an end of a sample, from the kill until its lease runs out."""
    if killed == math.inf:
        return 0.0
    ends = sorted(mark.stat().st_mtime for mark in step.rglob("MERLIN_FINISHED"))
    times = [killed, *(end for end in ends if killed < end < killed + LEASE_S), killed + LEASE_S]
    return max(b - a for a, b in itertools.pairwise(times))


def redis_load(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Commands and bytes per 1,000 samples, and the share of authentication."""
    rows = []
    for n in (num, 3 * num):
        seconds, stats = drain_once(tmp / "load", n)
        calls, moved, peak = load(stats, n)
        what = f"Redis per 1,000 samples, {n:,} samples in {seconds:.0f} s"
        rows.append(
            Row(what, f"{calls:,.0f} commands, {moved:,.0f} kB", floor="reported", memory=f"{peak:.1f} MB")
        )
    return [*rows, _authentication()]


def load(stats: dict[str, Any], num: int) -> tuple[float, float, float]:
    """Of a server that served one study: commands and kB per 1,000 samples, MB at its peak."""
    moved = stats["total_net_input_bytes"] + stats["total_net_output_bytes"]
    return stats["total_commands_processed"] / num * 1e3, moved / num, stats["used_memory_peak"] / 1e6


def _authentication() -> Row:
    from merlin.config.seal import seal, unseal

    body = {"v": 1, "study": "s" * 32, "workspace": "/p/lustre/" + "w" * 60, "plan": "d" * 64, "instance": "step",
            "lo": 0, "hi": 10**8, "lease": "t" * 20}  # fmt: skip
    key = b"k" * 32
    start = time.perf_counter()
    for _ in range(2000):
        unseal(seal(body, key), key)
    each = (time.perf_counter() - start) / 2000
    chunk_s = 3.0  # what a chunk of learned size takes
    share = each / chunk_s * 100
    what = "sealing and checking a message, as a share of its chunk"
    return Row(what, f"{each * 1e6:.0f} µs = {share:.4f} %", floor="< 3 %")
