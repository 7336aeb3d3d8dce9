"""Shuffled batches of torch tensors, against torch's own loader over the plainest data set there is.

A sample: 5 inputs, 15 scalars and a 64 x 64 x 4 float32 image; batches of 128; everything in the page cache.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from format_peers import BATCH
from measure import fresh, median, ratio
from reading import make_data_set
from report import Row, floor
from torch.utils.data import DataLoader, Dataset

EPOCHS_OF_MEMORY = 10


class MemmapDataset(Dataset):
    """One sample at a time from flat files, as any tutorial has it."""

    def __init__(self, folder: Path, num: int) -> None:
        self.files = {
            "inputs": np.memmap(folder / "inputs.bin", np.float32, "r+", shape=(num, 5)),
            "scalars": np.memmap(folder / "scalars.bin", np.float32, "r+", shape=(num, 15)),
            "image": np.memmap(folder / "image.bin", np.float32, "r+", shape=(num, 64, 64, 4)),
        }

    def __len__(self) -> int:
        return len(self.files["image"])

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {name: torch.from_numpy(values[i]) for name, values in self.files.items()}


def write_flat(directory: Path, folder: Path) -> MemmapDataset:
    """The same samples as flat files."""
    from merlin.train import ShardDataset

    dataset = ShardDataset(directory, stack_scalars=True)
    for name in ("inputs", "scalars", "image"):
        with open(folder / f"{name}.bin", "wb") as file:
            for lo in range(0, len(dataset), 1000):
                dataset[range(lo, min(lo + 1000, len(dataset)))][name].numpy().tofile(file)
    return MemmapDataset(folder, len(dataset))


def rate(batches: Any) -> float:
    """Samples per second of one epoch."""
    start = time.perf_counter()
    num = sum(len(batch["image"]) for batch in batches)
    return num / (time.perf_counter() - start)


@contextmanager
def loader(directory: Path, normalise: Any = None, **more: Any) -> Iterator[Callable[[], float]]:
    """Rates of further and further epochs of a loader."""
    from merlin.train import ShardDataset, ShardLoader

    dataset = ShardDataset(directory, stack_scalars=True, normalise=normalise)
    with ShardLoader(dataset, BATCH, seed=1, drop_last=True, **more) as batches:
        yield lambda: rate(batches)


def bare_gather(flat: MemmapDataset) -> Callable[[], float]:
    """Rates of gathering the images alone, into one batch that is used again, without a thread or tensors."""
    from merlin.shards.format.aligned import aligned_empty

    image = flat.files["image"]
    out = aligned_empty((BATCH, *image.shape[1:]), image.dtype)
    random = np.random.default_rng(0)

    def gathered() -> Iterator[dict[str, Any]]:
        order = random.permutation(len(image))
        for lo in range(0, len(image) - BATCH + 1, BATCH):
            np.take(image, order[lo : lo + BATCH], axis=0, out=out, mode="clip")
            yield {"image": out}

    return lambda: rate(gathered())


def torch_batches(tmp: Path, rounds: int, num: int) -> list[Row]:
    """ShardLoader and its variants, round by round with torch's DataLoader(num_workers=2) over flat files."""
    directory = make_data_set(tmp / "study", num)
    flat = write_flat(directory, fresh(tmp / "flat"))
    theirs = DataLoader(flat, BATCH, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True)
    bare = bare_gather(flat)
    variants: dict[str, dict[str, Any]] = {
        "prefetch": {},
        "no thread": {"prefetch": 0},
        "2 workers": {"num_workers": 2},
        "normalised": {"normalise": "standard"},
    }
    rates: dict[str, list[float]] = {name: [] for name in ("torch", "bare", *variants)}
    for number in range(max(rounds, 5) + 1):
        found = {"torch": rate(theirs), "bare": bare()}
        for name, more in variants.items():
            with loader(directory, **more) as epoch:
                epoch()
                found[name] = median([epoch() for _ in range(3)])
        for name, value in found.items():
            rates[name] += [value] * (number > 0)  # the first round warms the page cache
    peer = f"{median(rates['torch']):,.0f}/s"
    what = (
        f"torch batches of {BATCH} with prefetch from {num:,} warm images, against DataLoader(num_workers=2)"
    )
    rows = [_row(what, rates, "prefetch", peer, "≥ 5×", memory_growth(directory))]
    for name in list(variants)[1:]:
        rows.append(_row(f"the same, {name}", rates, name, peer, "", ""))
    bare_rate = f"{median(rates['bare']):,.0f}/s"
    for what, name in (
        ("the first, against a bare memmap gather into one batch that is used again", "prefetch"),
        ("the same without a thread, which needs two batches in the cache, not three", "no thread"),
    ):
        share = ratio(rates[name], rates["bare"])
        wanted = floor("≥ 0.9×", share >= 0.9) if name == "prefetch" else ""
        rows.append(Row(what, f"{median(rates[name]):,.0f}/s", bare_rate, f"{share:.2f}×", wanted))
    return rows


def _row(what: str, rates: dict[str, list[float]], name: str, peer: str, floor: str, memory: str) -> Row:
    ours = f"{median(rates[name]):,.0f}/s"
    return Row(what, ours, peer, f"{ratio(rates[name], rates['torch']):.1f}×", floor, memory)


def memory_growth(directory: Path) -> str:
    """How much this process grows over ten epochs, after two."""
    with loader(directory) as epoch:
        epoch(), epoch()
        before = _resident()
        for _ in range(EPOCHS_OF_MEMORY):
            epoch()
        return f"{(_resident() - before) / 1e6:+.1f} MB over {EPOCHS_OF_MEMORY} epochs"


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
