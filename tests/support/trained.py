"""A small run that has ended, for tests of what comes out of runs."""

from __future__ import annotations

from pathlib import Path

import torch
from surrogate_data import make_surrogate_data
from train_run import prepare_run, train_run

from merlin.train.run_directory import RunDirectory

NUM = 600


def make_trained(folder: Path, *words: str, steps: int = 30, data: Path | None = None) -> RunDirectory:
    """A regressor of scalars and an image after a few steps; `words` change its configuration."""
    torch.set_num_threads(1)
    data = make_surrogate_data(folder / "d", NUM) if data is None else data
    usual = ("fields.images=[image]", "model={name: regressor, width: 16}", f"training.steps={steps}")
    return train_run(prepare_run(data, folder / "run", *usual, *words))[0]
