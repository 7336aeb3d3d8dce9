"""Samples per second of the training loop, against the same model in a bare PyTorch loop on tensors in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from imported_data import import_arrays
from measure import fresh, median, ratio
from msgspec.structs import replace
from open_loops import opened_loop
from report import Row, floor

from merlin.train.config_file import parse_config
from merlin.train.loop import Loop
from merlin.train.models.base import Shapes
from merlin.train.prepare import build_trainee, check

NUM_INPUTS, NUM_SCALARS = 5, 15
STEPS = 50  # of a turn
CONFIG = """
data: {data}
directory: {directory}
model: {{name: regressor, width: {width}, depth: 4}}
training: {{epochs: 100000, batch_size: {batch}, device: {device}, validate_every: 1000000}}
"""


def make_scalars(folder: Path, num: int) -> Path:
    """A data set as the ICF surrogate's, without images: 5 inputs, 15 scalars."""
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, (num, NUM_INPUTS))
    y = np.sin(3 * x @ rng.normal(size=(NUM_INPUTS, NUM_SCALARS)))
    columns = {f"x{i}": x[:, i] for i in range(NUM_INPUTS)} | {f"y{i}": y[:, i] for i in range(NUM_SCALARS)}
    inputs = ", ".join(f"x{i}" for i in range(NUM_INPUTS))
    fields = ", ".join(f"y{i}: {{kind: scalar}}" for i in range(NUM_SCALARS))
    return import_arrays(folder, f"inputs: [{inputs}]\nfields: {{{fields}}}\n", columns)


@contextmanager
def our_loop(folder: Path, *, width: int, batch: int, device: str) -> Iterator[Loop]:
    """The loop of `merlin train`, with everything in place."""
    text = CONFIG.format(
        data=folder / "data", directory=folder / "run", width=width, batch=batch, device=device
    )
    prepared = check(parse_config(text, "bench.yaml"))
    with opened_loop(replace(prepared, run=prepared.begin()), 0) as loop:
        yield loop


class BareLoop:
    """What a tutorial has: a shuffled index into tensors, forward, backward, a fused optimiser's step."""

    def __init__(self, loop: Loop, batch: int) -> None:
        dataset = loop.trainer.loader.dataset
        everything = dataset[list(range(len(dataset)))]
        self.device = loop.trainer.device
        self.x, self.y = (everything[key].to(self.device, copy=True) for key in ("inputs", "scalars"))
        shapes = Shapes.of(dataset.input_names, dataset.scalar_names)
        self.model = build_trainee(loop.trainer.config, shapes).layers.to(self.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, fused=True)
        self.batch = batch
        self.order = torch.randperm(len(self.x), device=self.device)
        self.at = 0

    def train_steps(self, num: int) -> None:
        for _ in range(num):
            if self.at + self.batch > len(self.x):
                self.order, self.at = torch.randperm(len(self.x), device=self.device), 0
            index = self.order[self.at : self.at + self.batch]
            self.at += self.batch
            loss = torch.nn.functional.mse_loss(self.model(self.x[index]), self.y[index])
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()


def training_loop(
    folder: Path,
    rounds: int,
    num: int,
    *,
    width: int = 512,
    batch: int = 128,
    device: str = "cpu",
) -> dict[str, float]:
    """Samples/s of both, in turn, and the median of the ratios; `num` samples, `rounds` turns of `STEPS` steps.

    Ours includes reading from shards, its lines of metrics, and its checks. Turns are short, because the speed of a
    machine that does other things, too, changes from second to second.
    """
    make_scalars(folder, num)
    ours, bare = [], []
    with our_loop(folder, width=width, batch=batch, device=device) as loop:
        other = BareLoop(loop, batch)
        for turn in range(rounds + 3):
            for rates, train in (
                (ours, lambda: advance(loop, STEPS)),
                (bare, lambda: other.train_steps(STEPS)),
            ):
                begin = time.perf_counter()
                train()
                if device != "cpu":
                    torch.cuda.synchronize()
                if turn >= 3:  # those before are for warming up
                    rates.append(STEPS * batch / (time.perf_counter() - begin))
    return {"ours": median(ours), "bare": median(bare), "ratio": ratio(ours, bare)}


def training_rows(tmp: Path, rounds: int, num: int) -> list[Row]:
    """The row of docs/benchmarks.md, for two sizes of the model."""
    torch.manual_seed(0)
    rows = []
    for width in (256, 512):
        folder = fresh(tmp / str(width))
        found = training_loop(folder, 20 * rounds, num, width=width)
        what = f"training loop, MLP of 4 x {width}, batches of 128 on the CPU, against a bare PyTorch loop in memory"
        rates = f"{found['ours']:,.0f}/s", f"{found['bare']:,.0f}/s"
        wanted = floor("≥ 0.97×", round(found["ratio"], 2) >= 0.97)
        rows.append(Row(what, *rates, f"{found['ratio']:.2f}×", wanted))
    return rows


def advance(loop: Loop, steps: int) -> None:
    """As the run does it, for some more steps."""
    target = loop.trainer.step + steps
    while loop.trainer.step < target:
        loop.advance()
