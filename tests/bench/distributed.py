"""Studies on Celery workers and Redis, against the peer's distributed mode."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from deployment import Deployment, deployment, wait_for
from measure import SPECS, fresh, median, only_workspace, ratio
from report import Row

from merlin.study.layout import SampleLayout


def _publish(made: Deployment, spec: str, num: int) -> float:
    return made.command("run", str(SPECS / f"{spec}.yaml"), "--vars", f"N_SAMPLES={num}")


def _drain(folder: Path, spec: str, num: int) -> tuple[float, dict[str, Any]]:
    """Seconds from the start of a worker until the step after the fan-out has run, and what Redis did for it."""
    folder = fresh(folder)
    with deployment(folder) as made:
        _publish(made, spec, num)
        workspace = only_workspace(folder)
        start = time.perf_counter()
        made.start_worker()
        wait_for(lambda: (workspace / "after" / "started").exists(), 900, "the next step")
        seconds = time.perf_counter() - start
        with made.client() as client:
            stats = client.info("all")
        return seconds, stats


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
        ours.append(_drain(tmp / "ours", "chain_shell", num)[0])
        peer.append(_peer_drain(tmp / "peer", num))
    rates = f"{num / median(ours):,.0f}/s", f"{num / median(peer):,.0f}/s"
    floor = "≥ 20×" if num >= 30_000 else "≥ 12×"
    what = f"null shell on Celery and Redis, {num:,} samples, worker start to the next step, against merlin==1.13.0"
    return [Row(what, *rates, f"{ratio(peer, ours):.1f}×", floor, "")]


def drain_large(tmp: Path, rounds: int, num: int) -> list[Row]:
    return drain(tmp, 1, num)


def null_function(tmp: Path, rounds: int, num: int) -> list[Row]:
    seconds = []
    for _ in range(rounds):
        folder = fresh(tmp / "function")
        with deployment(folder) as made:
            _publish(made, "null_function", num)
            start = time.perf_counter()
            made.start_worker()
            wait_for(lambda: _is_finished(made, folder), 600, "the end of the study")  # noqa: B023
            seconds.append(time.perf_counter() - start)
    rate = f"{num / median(seconds):,.0f}/s"
    return [
        Row(f"null function on Celery, {num:,} samples, worker start to end", rate, "", "", "≥ 200,000/s", "")
    ]


def _is_finished(made: Deployment, folder: Path) -> bool:
    with made.client() as client:
        return not client.exists(f"merlin:{made.namespace()}:studies")


def publish(tmp: Path, rounds: int, num: int) -> list[Row]:
    rows = []
    for n, floor in ((num // 100, "≤ 1 s"), (num, "≤ 3 s")):
        seconds, used = [], []
        for _ in range(rounds):
            folder = fresh(tmp / "publish")
            with deployment(folder) as made, made.client() as client:
                before = client.info("memory")["used_memory"]
                seconds.append(_publish(made, "null_shell", n))
                used.append(client.info("memory")["used_memory"] - before)
        what = f"merlin run of {n:,} samples with a broker"
        rows.append(Row(what, f"{median(seconds):.2f} s", "", "", floor, ""))
    rows.append(Row("memory of the broker for it", f"{max(used) / 1e6:.2f} MB", "", "", "< 5 MB", ""))
    return rows


def first_sample(tmp: Path, rounds: int, num: int) -> list[Row]:
    seconds = []
    for _ in range(rounds):
        folder = fresh(tmp / "first")
        with deployment(folder) as made:
            _publish(made, "null_shell", num)
            step = only_workspace(folder) / "null_step" / SampleLayout(num, 25).path(0) / "MERLIN_FINISHED"
            start = time.perf_counter()
            made.start_worker()
            wait_for(step.exists, 60, "the first sample")
            seconds.append(time.perf_counter() - start)
    what = f"worker start to first finished sample, {num:,} samples (peer: 286 s)"
    return [Row(what, f"{median(seconds):.2f} s", "286 s", f"{286 / median(seconds):.0f}×", "≤ 4 s", "")]


def recovery(tmp: Path, rounds: int, num: int) -> list[Row]:
    lease = 10.0
    calm, killed = [], []
    for _ in range(rounds):
        calm.append(_sleepers(tmp / "calm", num, lease, is_killed=False))
        killed.append(_sleepers(tmp / "killed", num, lease, is_killed=True))
    what = f"kill -9 of one of two workers, {num} samples of 50 ms, lease {lease:g} s, to the last sample"
    floor = f"≤ {lease + 1.1 * median(calm):.1f} s (a lease + 110 % of undisturbed)"
    return [Row(what, f"{median(killed):.1f} s", f"{median(calm):.1f} s undisturbed", "", floor, "")]


def _sleepers(folder: Path, num: int, lease: float, *, is_killed: bool) -> float:
    folder = fresh(folder)
    with deployment(folder) as made:
        _publish(made, "sleep_shell", num)
        start = time.perf_counter()
        env = {"MERLIN_LEASE_S": str(lease)}
        first = made.start_worker("w1", **env)
        made.start_worker("w2", **env)
        step = only_workspace(folder) / "sleep_step"
        wait_for(lambda: any(step.rglob("MERLIN_FINISHED")), 60, "the first sample")
        if is_killed:
            time.sleep(1.0)
            os.kill(first.pid, signal.SIGKILL)
        wait_for(lambda: _is_finished(made, folder), 300, "the end of the study")
        return time.perf_counter() - start


def redis_load(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Commands and bytes per 1,000 samples, and the share of authentication."""
    rows = []
    for n in (num, 3 * num):
        seconds, stats = _drain(tmp / "load", "chain_shell", n)
        calls = stats["total_commands_processed"] / n * 1000
        moved = (stats["total_net_input_bytes"] + stats["total_net_output_bytes"]) / n * 1000
        peak = stats["used_memory_peak"] / 1e6
        what = f"Redis per 1,000 samples, {n:,} samples in {seconds:.0f} s"
        rows.append(
            Row(what, f"{calls:,.0f} commands, {moved / 1e3:,.0f} kB", "", "", "reported", f"{peak:.1f} MB")
        )
    return [*rows, _authentication()]


def _authentication() -> Row:
    from merlin.config.seal import seal, unseal

    body = {"v": 1, "study": "s" * 32, "workspace": "/p/lustre/" + "w" * 60, "plan": "d" * 64, "instance": "step",
            "lo": 0, "hi": 10**8, "ticket": "t" * 20}  # fmt: skip
    key = b"k" * 32
    start = time.perf_counter()
    for _ in range(2000):
        unseal(seal(body, key), key)
    each = (time.perf_counter() - start) / 2000
    chunk_s = 3.0  # what a chunk of learned size takes
    share = each / chunk_s * 100
    return Row("sealing and checking a message, as a share of its chunk", f"{each * 1e6:.0f} µs = {share:.4f} %",
               "", "", "< 3 %", "")  # fmt: skip
