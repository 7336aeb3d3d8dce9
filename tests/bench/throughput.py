"""Samples per second of whole studies, paired A B A B with the peer and with bare loops."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from measure import HERE, SPECS, Timing, fresh, local_run, median_s, only_workspace, ratio_s, run, until
from peer import peer_environment, peer_merlin
from report import Row, mb


def _ours(folder: Path, spec: str, num: int, *variables: str) -> Timing:
    """Runs in `folder`, which is to be a fresh one."""
    return run(local_run(spec, num, *variables), folder)


def _peer(folder: Path, spec: str, num: int) -> Timing:
    folder = fresh(folder)
    for name in (f"{spec}_peer.yaml", "collect.py"):
        shutil.copy(SPECS / name, folder)
    command = [peer_merlin(), "run", "--local", f"{spec}_peer.yaml", "--vars", f"N_SAMPLES={num}"]
    timing = run(command, folder, peer_environment())
    done = sum(1 for _ in folder.rglob("MERLIN_FINISHED"))
    if done < num:
        raise RuntimeError(f"the peer finished {done} of {num} tasks")
    return timing


def _bare(folder: Path, kind: str, num: int) -> Timing:
    folder = fresh(folder)
    return run([sys.executable, str(HERE / "bare_loop.py"), kind, str(folder / "tree"), str(num)], folder)


def _ledger_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in (only_workspace(folder) / "merlin_info/ledger").iterdir())


def null_shell(tmp: Path, rounds: int, num: int) -> list[Row]:
    warm, forced, peer, bare_warm, bare_fresh = [], [], [], [], []
    for _ in range(rounds):
        bare_warm.append(_bare(tmp / "bare", "warm", num))
        warm.append(_ours(fresh(tmp / "warm"), "null_shell", num))
        peer.append(_peer(tmp / "peer", "null_shell", num))
        bare_fresh.append(_bare(tmp / "bare", "fresh", num))
        forced.append(_ours(fresh(tmp / "fresh"), "null_shell", num, "FRESH=true"))

    def row(what: str, mine: list[Timing], other: list[Timing], floor: str) -> Row:
        rates = f"{num / median_s(mine):,.0f}/s", f"{num / median_s(other):,.0f}/s"
        return Row(what, *rates, f"{ratio_s(other, mine):.2f}×", floor, mb(mine))

    return [
        row(
            f"null shell, {num:,} samples, 2 workers, against merlin==1.13.0 run --local", warm, peer, "≥ 12×"
        ),
        row("the same against a bare warm loop", warm, bare_warm, "≥ 0.60×"),
        row("fresh shell per task forced, against merlin==1.13.0", forced, peer, "≥ 5×"),
        row("the same against a bare fresh loop", forced, bare_fresh, "≥ 0.75×"),
    ]


def json_to_shards(tmp: Path, rounds: int, num: int) -> list[Row]:
    mine, peer = [], []
    for _ in range(rounds):
        mine.append(_ours(fresh(tmp / "mine"), "json_shell", num))
        peer.append(_peer(tmp / "peer", "json_shell", num))
    what = f"one JSON per sample into HDF5, end to end, {num:,} samples"
    return [
        Row(
            what,
            f"{median_s(mine):.1f} s",
            f"{median_s(peer):.1f} s",
            f"{ratio_s(peer, mine):.1f}×",
            "≥ 10×",
            mb(mine),
        )
    ]


def null_function(tmp: Path, rounds: int, num: int) -> list[Row]:
    folders = [fresh(tmp / "function") for _ in range(rounds)]
    timings = [_ours(folder, "null_function", num) for folder in folders]
    rate = num / median_s(timings)
    ledger = _ledger_bytes(folders[0])
    return [
        Row(
            f"null function, {num:,} samples, whole command",
            f"{rate:,.0f}/s",
            floor="≥ 300,000/s",
            memory=mb(timings),
        ),
        Row("ledger bytes per sample, null function", f"{ledger / num:.2f}", floor="≤ 16"),
    ]


def ledger_of_shell(tmp: Path, rounds: int, num: int) -> list[Row]:
    folder = fresh(tmp / "ledger")
    _ours(folder, "null_shell", num)
    ledger = _ledger_bytes(folder)
    return [Row(f"ledger bytes per sample, null shell, {num:,}", f"{ledger / num:.2f}", floor="≤ 16")]


def first_sample(tmp: Path, rounds: int, num: int) -> list[Row]:
    timings, done = [], "*/null_step/00/00/00/00/00/MERLIN_FINISHED"
    for _ in range(rounds):
        folder = fresh(tmp / "million")
        timings.append(until(local_run("null_shell", num), folder, lambda f=folder: any(f.glob(done))))
    seconds = median_s(timings)
    what = f"{num:,}-sample shell study, command to first finished sample (peer: 286 s, 1.24 GB)"
    return [Row(what, f"{seconds:.2f} s", "286 s", f"{286 / seconds:.0f}×", "≤ 3 s, < 200 MB", mb(timings))]
