"""Writing and verifying shards, against the plainest thing that moves the same bytes."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import MERLIN, SPECS, fresh, local_run, median, only_workspace, ratio, run
from report import Row


def _timed(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def shard_writing(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One shard of `num` images from its bundles, against tofile + fsync of the same bytes."""
    from merlin.shards.format.shard_info import shard_name
    from merlin.shards.writing.bundle import Origin
    from merlin.shards.writing.collect import CollectRequest, collect_chunk
    from merlin.shards.writing.gather import write_shard
    from merlin.spec.load import load_spec
    from merlin.workspace.options import StudyOptions
    from merlin.workspace.prepare import prepare_study

    variables = {"N_SAMPLES": str(num), "OUTPUT_PATH": str(fresh(tmp / "study"))}
    text = (SPECS / "images.yaml").read_text().replace("samples_per_shard: 2000", f"samples_per_shard: {num}")
    (tmp / "images.yaml").write_text(text)
    spec = load_spec(tmp / "images.yaml", variables=variables)
    workspace = prepare_study(spec, StudyOptions())
    source, aggregate = workspace.instance("simulate"), workspace.instance("collect")
    image = np.random.default_rng(0).random((num, 64, 64, 4), dtype=np.float32)
    scalars = np.random.default_rng(1).random((num, 15))
    for lo in range(0, num, 500):
        hi = min(lo + 500, num)
        request = CollectRequest(
            workspace=workspace,
            aggregate=aggregate,
            source=source,
            lo=lo,
            hi=hi,
            ok=np.ones(hi - lo, dtype=bool),
            outputs={"image": image[lo:hi], "scalars": scalars[lo:hi]},
            origin=Origin(1, "w0"),
        )
        collect_chunk(request)

    def plain(path: Path) -> None:
        with open(path, "wb") as f:
            image.tofile(f)
            scalars.tofile(f)
            f.flush()
            os.fsync(f.fileno())

    shard = workspace.data_set_dir(aggregate) / shard_name(0)
    raw = tmp / "plain.bin"
    size = (image.nbytes + scalars.nbytes) / 1e6

    def row(what: str, floor: str, put_away: Callable[[Path, int], Any]) -> Row:
        ours, other = [], []
        for number in range(max(rounds, 9)):
            put_away(raw, number)
            other.append(_timed(lambda: plain(raw)))
            put_away(shard, number)
            ours.append(_timed(lambda: write_shard(workspace, aggregate, 0, ())))
        rates = f"{size / median(ours):,.0f} MB/s", f"{size / median(other):,.0f} MB/s"
        return Row(what, *rates, f"{ratio(other, ours):.2f}×", floor)

    def keep(path: Path, number: int) -> None:
        """Let the next file be a new one on free blocks, as in a run, with nothing of others left to be written."""
        if path.exists():
            path.rename(tmp / f"{path.name}-{number}")
        os.sync()

    def delete(path: Path, number: int) -> None:
        """Let the next file take the blocks of one that was there a moment ago."""
        path.unlink(missing_ok=True)

    what = f"one shard of {num:,} images from bundles ({size:.0f} MB), against tofile + fsync"
    return [
        row(f"{what}, new files", "≥ 0.60×", keep),
        row(f"{what}, each in place of a file deleted just before", "reported", delete),
    ]


def verify(tmp: Path, rounds: int, num: int) -> list[Row]:
    """A full verification, per second of CPU time, against SHA-256 of the same files."""
    folder = fresh(tmp / "study")
    run(local_run("images", num), folder)
    data_set = only_workspace(folder) / "collect"
    shards = sorted(data_set.glob("*.h5"))
    size = sum(path.stat().st_size for path in shards)
    for path in shards:
        path.read_bytes()  # warm

    def sha256() -> None:
        for path in shards:
            with open(path, "rb", buffering=0) as file:
                hashlib.file_digest(file, "sha256")

    ours, whole, plain = [], [], []
    for _ in range(rounds):
        timing = run([MERLIN, "shards", "verify", "--workers", "1", str(data_set)], fresh(tmp / "log"))
        whole.append(run([MERLIN, "shards", "verify", str(data_set)], fresh(tmp / "log")).seconds)
        ours.append(timing.seconds)
        plain.append(_timed(sha256))
    what = f"shards verify of {size / 1e9:.1f} GB with one worker, start to end, against SHA-256 alone"
    speed = f"{size / median(ours) / 1e9:.2f} GB/s", f"{size / median(plain) / 1e9:.2f} GB/s"
    both = f"{size / median(whole) / 1e9:.2f} GB/s"
    return [
        Row(what, *speed, f"{ratio(plain, ours):.2f}×", "≥ 1 GB/s"),
        Row(f"the same with {os.cpu_count()} workers", both, speed[1], f"{ratio(plain, whole):.2f}×"),
    ]
