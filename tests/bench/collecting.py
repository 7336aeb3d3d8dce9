"""Collecting the outputs of a study again, against its own collect step over the same files."""

from __future__ import annotations

from pathlib import Path

from measure import MERLIN, fresh, local_run, median_s, only_workspace, ratio_s, run
from report import Row, mb


def collect_again(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One study; its data set is put aside before each round, so that its collect step reads the files, too."""
    folder = fresh(tmp / "study")
    run(local_run("json_shell", num), folder)
    workspace = only_workspace(folder)
    step, again = [], []
    for number in range(rounds):
        (workspace / "collect").rename(folder / f"aside-{number}")
        rerun = [MERLIN, "rerun", str(workspace), "--step", "collect", "--yes", "--local", "--workers", "2"]
        step.append(run(rerun, folder))
        out = folder / f"out-{number}"
        again.append(run([MERLIN, "shards", "collect", str(workspace), "--out", str(out)], folder))
        _require_rows(out, num)
    what = f"collecting {num:,} JSON outputs again, whole command, against the study's own collect step"
    return [
        Row(
            what,
            f"{median_s(again):.2f} s",
            f"{median_s(step):.2f} s",
            f"{ratio_s(step, again):.2f}×",
            "≥ 0.9×",
            mb(again),
        )
    ]


def _require_rows(out: Path, num: int) -> None:
    import merlin

    with merlin.open_shards(out) as data:
        if len(data) != num:
            raise RuntimeError(f"{out} has {len(data)} of {num} rows")
