"""The rows on workers and Redis with two versions of the project, in turn: A B A B.

PYTHONPATH=tests/bench:tests/support python tests/bench/compare.py --before DIR [--after DIR] [--rounds 3] [ROW …]

DIR holds the package `merlin`. Both are measured by the same code, this folder's, each run in a process of its own.
Every figure is the less the better; the ratio, before over after, is the median of the ratios of neighbours.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import distributed
from distributed import Victim
from measure import median, ratio

FLOOR = 0.95  # of before
Figures = dict[str, float]


def _drain(folder: Path, num: int) -> Figures:
    seconds, stats = distributed.drain_once(folder, num)
    commands, moved_kb, peak_mb = distributed.load(stats, num)
    cpu = {"s": seconds, "CPU s of the worker": stats["workers_cpu_s"]}
    return cpu | {"commands per 1,000": commands, "kB per 1,000": moved_kb, "MB in Redis": peak_mb}


def _publish(folder: Path, num: int) -> Figures:
    seconds, used = distributed.publish_once(folder, num)
    return {"s": seconds, "MB in Redis": used / 1e6}


def _recovery(victim: Victim) -> Callable[[Path, int], Figures]:
    def run(folder: Path, num: int) -> Figures:
        found = distributed.recover_once(folder, num, victim)
        return {"s": found.seconds} | ({"s idle": found.idle_s} if victim else {})

    return run


ROWS: dict[str, tuple[Callable[[Path, int], Figures], int]] = {
    "drain": (_drain, 10_000),
    "drain_large": (_drain, 30_000),
    "null_function": (lambda folder, num: {"s": distributed.function_once(folder, num)}, 10_000_000),
    "first_sample": (lambda folder, num: {"s": distributed.first_sample_once(folder, num)}, 1_000_000),
    "publish": (_publish, 1_000_000),
    "publish_large": (_publish, 100_000_000),
    "undisturbed": (_recovery(""), 1_000),
    "kill_other": (_recovery("other"), 1_000),
    "kill_owner": (_recovery("owner"), 1_000),
}


def measure(tree: Path, name: str, num: int, folder: Path) -> Figures:
    """One run of one row with the version in `tree`."""
    env = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, __file__, "--run", name, str(num), str(folder)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} with {tree}: {done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    if Path(found["merlin"]) != tree / "merlin":
        raise RuntimeError(f"{found['merlin']} was measured in place of {tree}")
    return dict(found["figures"])


def compare(before: Path, after: Path, name: str, num: int, rounds: int, tmp: Path) -> None:
    runs: list[tuple[Figures, Figures]] = []
    for k in range(rounds):
        a, b = (measure(tree, name, num, tmp / f"{name}-{w}{k}") for tree, w in ((before, "a"), (after, "b")))
        runs.append((a, b))
        print(f"  {name} {k + 1}: {_shown(a)}  |  {_shown(b)}", flush=True)
    for figure in runs[0][0]:
        old, new = [a[figure] for a, _ in runs], [b[figure] for _, b in runs]
        if not all(old + new):
            continue
        found = ratio(old, new)
        verdict = "" if found >= FLOOR else f"  below {FLOOR}"
        cells = f"{name}, {num:,}: {figure} | {median(old):.4g} | {median(new):.4g} | {found:.2f}×"
        print(f"| {cells} |{verdict}", flush=True)


def _shown(figures: Figures) -> str:
    return ", ".join(f"{value:.4g} {figure}" for figure, value in figures.items())


def run(name: str, num: int, folder: Path) -> None:
    """Measure once, with whatever version Python finds, and print it."""
    import merlin

    figures = ROWS[name][0](folder, num)
    print(json.dumps({"merlin": str(Path(merlin.__path__[0])), "figures": figures}))


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        name, num, folder = sys.argv[2:]
        run(name, int(num), Path(folder))
        return
    here = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; all when none is named"
    )
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--after", type=Path, default=here)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the size")
    args = parser.parse_args()
    if unknown := set(args.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    before, after = args.before.resolve(), args.after.resolve()
    with tempfile.TemporaryDirectory(prefix="merlin-compare-") as tmp:
        for name in args.rows or ROWS:
            num = ROWS[name][1]
            compare(before, after, name, num // 10 if args.quick else num, args.rounds, Path(tmp))


if __name__ == "__main__":
    main()
