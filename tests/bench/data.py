"""Writing shards and reading random batches, against the plainest thing that moves the same bytes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from measure import MERLIN, SPECS, fresh, median, only_workspace, ratio, run
from report import Row

BATCH = 128


def _study(folder: Path, num: int, *variables: str) -> Path:
    command = [MERLIN, "run", "--local", "--workers", "2", str(SPECS / "images.yaml")]
    folder = fresh(folder)
    run([*command, "--vars", f"N_SAMPLES={num}", *variables], folder)
    return only_workspace(folder)


def _timed(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def shard_writing(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One shard of `num` images from its bundles, against tofile + fsync of the same bytes."""
    from merlin.shards.writing.collect import CollectRequest, collect_chunk
    from merlin.shards.writing.gather import write_shard
    from merlin.spec.load import load_spec
    from merlin.study.prepare import StudyOptions, prepare_study

    variables = {"N_SAMPLES": str(num), "OUTPUT_PATH": str(fresh(tmp / "study"))}
    text = (SPECS / "images.yaml").read_text().replace("samples_per_shard: 2000", f"samples_per_shard: {num}")
    (tmp / "images.yaml").write_text(text)
    spec = load_spec(tmp / "images.yaml", variables=variables)
    workspace = prepare_study(spec, StudyOptions())
    source, aggregate = workspace.instance("simulate"), workspace.instance("collect")
    image = np.random.default_rng(0).random((num, 64, 64, 4), dtype=np.float32)
    scalars = np.random.default_rng(1).random((num, 15))
    step = 500
    for lo in range(0, num, step):
        outputs = {"image": image[lo : lo + step], "scalars": scalars[lo : lo + step]}
        ok = np.ones(step, dtype=bool)
        collect_chunk(
            CollectRequest(
                workspace=workspace,
                aggregate=aggregate,
                source=source,
                lo=lo,
                hi=lo + step,
                ok=ok,
                outputs=outputs,
                attempt=1,
                worker="w0",
            )
        )

    def plain() -> None:
        with open(tmp / "plain.bin", "wb") as f:
            image.tofile(f)
            scalars.tofile(f)
            f.flush()
            os.fsync(f.fileno())

    ours, other = [], []
    for _ in range(max(rounds, 5)):
        other.append(_timed(plain))
        ours.append(_timed(lambda: write_shard(workspace, aggregate, 0, ())))
    size = (image.nbytes + scalars.nbytes) / 1e6
    what = f"one shard of {num:,} images from bundles ({size:.0f} MB), against tofile + fsync"
    rates = f"{size / median(ours):,.0f} MB/s", f"{size / median(other):,.0f} MB/s"
    return [Row(what, *rates, f"{ratio(other, ours):.2f}×", "≥ 0.60×", "")]


def _copy_bandwidth() -> float:
    """Bytes per second of one core copying memory (read + write counted once)."""
    a = np.ones(64 << 20, dtype=np.uint8)
    b = np.empty_like(a)
    return len(a) / median([_timed(lambda: np.copyto(b, a)) for _ in range(9)])


def random_batches(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Globally shuffled batches of 128 images from warm shards, against h5py with one chunk per sample."""
    import merlin

    ensemble = merlin.open_shards(_study(tmp / "study", num) / "collect")
    peer = tmp / "peer.h5"
    with h5py.File(peer, "w") as f:
        image = f.create_dataset("image", (num, 64, 64, 4), "f4", chunks=(1, 64, 64, 4))
        scalars = f.create_dataset("scalars", (num, 15), "f8", chunks=(1, 15))
        for lo in range(0, num, 1000):
            image[lo : lo + 1000] = ensemble["image"][lo : lo + 1000]
            scalars[lo : lo + 1000] = ensemble["scalars"][lo : lo + 1000]
    out = ensemble.allocate(BATCH, ("image", "scalars"))
    order = np.random.default_rng(0).permutation(num)
    batches = [order[i : i + BATCH] for i in range(0, num - BATCH + 1, BATCH)]
    few = batches[: max(1, len(batches) // 5)]

    def mine() -> None:
        for batch in batches:
            ensemble.batch(batch, fields=("image", "scalars"), out=out)

    def theirs() -> None:
        with h5py.File(peer) as f:
            image, scalars = f["image"], f["scalars"]
            for batch in few:
                for place, i in enumerate(batch):  # many times as fast as h5py with a list of rows
                    out["image"][place] = image[i]
                    out["scalars"][place] = scalars[i]

    mine(), theirs()
    ours, other = [], []
    for _ in range(max(rounds, 5)):
        ours.append(_timed(mine) / (len(batches) * BATCH))
        other.append(_timed(theirs) / (len(few) * BATCH))
    per_sample = 64 * 64 * 4 * 4 + 15 * 8
    share = per_sample / median(ours) / _copy_bandwidth()
    what = f"random batches of {BATCH} from {num:,} warm images, against h5py with a chunk per sample"
    rates = f"{1 / median(ours):,.0f}/s", f"{1 / median(other):,.0f}/s"
    return [
        Row(what, *rates, f"{ratio(other, ours):.1f}×", "≥ 5×", ""),
        Row("the same as a fraction of one core's copy bandwidth", f"{share:.2f}", "", "", "reported", ""),
    ]
