"""Reading and training on one GPU, against what one would write by hand; a machine without a GPU has no such rows."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from format_peers import BATCH
from imported_data import import_arrays
from loading import MemmapDataset, loader
from measure import MERLIN, fresh, median, ratio, run
from report import Row
from torch.utils.data import DataLoader
from training import training_loop

SIDE, CHANNELS, NUM_INPUTS, NUM_SCALARS = 64, 4, 5, 15
EPOCHS = 3
TRAINERS = 4
SURROGATE = """
data: {data}
directory: {place}
normalise: {{inputs: standard, scalars: standard, images: standard}}
model: {{name: latent_surrogate, image_weight: 0.5}}
optimizer: {{lr: 1e-3, betas: [0.9, 0.99]}}
training:
  {{steps: {steps}, batch_size: {batch}, clip_norm: 0.1, device: {device}, log_every: {log}, validate_every: {steps}}}
"""


def make_images(folder: Path, num: int) -> tuple[Path, MemmapDataset]:
    """Smooth images of 64 x 64 x 4 and 15 scalars of five inputs: as shards, and as flat files."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (num, NUM_INPUTS)).astype(np.float32)
    y = np.sin(3 * x @ rng.normal(size=(NUM_INPUTS, NUM_SCALARS))).astype(np.float32)
    waves = rng.normal(size=(NUM_INPUTS, SIDE * SIDE * CHANNELS)).astype(np.float32) / 4
    image = np.sin(x @ waves).reshape(num, SIDE, SIDE, CHANNELS)
    columns = {f"x{i}": x[:, i] for i in range(NUM_INPUTS)} | {f"y{i}": y[:, i] for i in range(NUM_SCALARS)}
    inputs = ", ".join(f"x{i}" for i in range(NUM_INPUTS))
    fields = ", ".join(f"y{i}: {{kind: scalar}}" for i in range(NUM_SCALARS))
    schema = f"inputs: [{inputs}]\nfields: {{{fields}, image: {{kind: image, layout: hwc}}}}\n"
    data = import_arrays(folder, schema, {**columns, "image": image})
    for name, values in (("inputs", x), ("scalars", y), ("image", image)):
        values.tofile(folder / f"{name}.bin")
    return data, MemmapDataset(folder, num)


def gpu_loading(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Shuffled batches on the GPU, against torch's loader with pinned memory, and against copying alone."""
    if not (gpu := _gpu()):
        return []
    directory, flat = make_images(tmp, num)
    theirs = DataLoader(
        flat, BATCH, shuffle=True, drop_last=True, num_workers=4, persistent_workers=True, pin_memory=True
    )
    found: dict[str, list[float]] = {name: [] for name in ("ours", "normalised", "torch", "copying")}
    more = {"ours": {"normalise": None}, "normalised": {"normalise": "standard"}}
    for number in range(rounds + 1):
        rates = {"torch": _rate(lambda: _moved(theirs)), "copying": _rate(lambda: _copies(num // BATCH))}
        for name, words in more.items():
            with loader(directory, device="cuda", **words) as epoch:
                epoch()
                rates[name] = median([epoch() for _ in range(EPOCHS)])
        for name, value in rates.items():
            found[name] += [value] * (number > 0)
    what = f"batches of {BATCH} images of {SIDE} × {SIDE} × {CHANNELS} from {num:,} warm samples onto {gpu}"
    against = "DataLoader(num_workers=4, pin_memory=True) over flat files"
    return [
        _row(f"{what}, against {against}", found, "ours", "torch"),
        _row(f"the same, normalised on the GPU, against {against}", found, "normalised", "torch"),
        _row("the same, as they are, against copies of one pinned batch", found, "ours", "copying"),
    ]


def _row(what: str, found: dict[str, list[float]], ours: str, other: str) -> Row:
    rates = f"{median(found[ours]):,.0f}/s", f"{median(found[other]):,.0f}/s"
    return Row(what, *rates, f"{ratio(found[ours], found[other]):.2f}×", "reported")


def _moved(batches: Any) -> Iterator[Any]:
    for batch in batches:
        yield {key: values.to("cuda", non_blocking=True) for key, values in batch.items()}


def _copies(num: int) -> Iterator[Any]:
    pinned = torch.empty((BATCH, SIDE, SIDE, CHANNELS), pin_memory=True)
    for _ in range(num):
        yield {"image": pinned.to("cuda", non_blocking=True)}


def _rate(batches: Callable[[], Iterator[Any]]) -> float:
    """Samples per second of one epoch, to the end of the last copy."""
    start = time.perf_counter()
    num = sum(len(batch["image"]) for batch in batches())
    torch.cuda.synchronize()
    return num / (time.perf_counter() - start)


def gpu_training(tmp: Path, rounds: int, num: int) -> list[Row]:
    """The training loop against a bare one whose data lie on the GPU; and the ICF surrogate's steps."""
    if not (gpu := _gpu()):
        return []
    rows = []
    for width, batch in ((512, 128), (2048, 1024)):
        folder = fresh(tmp / str(width))
        found = training_loop(folder, 5 * rounds, 20_000, width=width, batch=batch, device="cuda")
        what = f"training loop, MLP of 4 x {width}, batches of {batch} on {gpu}, against a bare loop, data on the GPU"
        rates = f"{found['ours']:,.0f}/s", f"{found['bare']:,.0f}/s"
        rows.append(Row(what, *rates, f"{found['ratio']:.2f}×", "reported"))
    directory, _ = make_images(fresh(tmp / "images"), num)
    what = "the model of specs/icf/train/surrogate.yaml, batches of 128"
    one = _surrogate_rate(tmp, directory, "cuda", 400)
    cpu = _surrogate_rate(tmp, directory, "cpu", 40, "training.threads=1")
    rows.append(_against(f"{what} in fp32, {gpu} against one core", one, cpu))
    bf16 = _surrogate_rate(tmp, directory, "cuda", 400, "training.precision=bf16")
    rows.append(_against(f"{what} on {gpu}, bf16 against fp32", bf16, one))
    words = (f"tournament.trainers={TRAINERS}", "tournament.strategy=none")
    together = TRAINERS * _surrogate_rate(tmp, directory, "cuda", 400, *words)
    rows.append(_against(f"{what} on {gpu}, {TRAINERS} trainers that share it against one", together, one))
    return rows


def _against(what: str, ours: float, other: float) -> Row:
    return Row(what, f"{ours:,.0f}/s", f"{other:,.0f}/s", f"{ours / other:.2f}×", "reported")


def _surrogate_rate(tmp: Path, data: Path, device: str, steps: int, *words: str) -> float:
    """Samples per second of the first trainer: the median of what its metrics tell after the first tenth."""
    place = tmp / f"run{time.monotonic_ns()}"
    text = SURROGATE.format(data=data, place=place, device=device, steps=steps, log=steps // 10, batch=BATCH)
    file = fresh(tmp / "log") / "train.yaml"
    file.write_text(text)
    run([MERLIN, "train", str(file), *words], file.parent)
    lines = (place / "trainers/0/metrics.jsonl").read_text().splitlines()
    rates = [line["samples_per_s"] for line in map(json.loads, lines) if "samples_per_s" in line]
    return median(rates[1:])


def _gpu() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
