"""Every generator of random numbers that a model may draw from: seeded, and kept in checkpoints."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from merlin.train.state_file import State


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """A context with PyTorch's random numbers of a seed, on the CPU and on this device; then they go on as before.

    `torch.manual_seed` seeds every kind of device. Where CUDA has not begun, it keeps each call, with its traceback,
    until it does, and that takes longer than a small model does for a thousand samples.
    """
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def random_state(device: torch.device) -> State:
    """The state of every generator that a model may draw from."""
    name, keys, position, has_gauss, gauss = np.random.get_state()
    return {
        "python": random.getstate(),
        "numpy": [name, torch.from_numpy(np.asarray(keys, dtype=np.int64)), position, has_gauss, gauss],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_random_state(state: State, device: torch.device) -> None:
    name, keys, position, has_gauss, gauss = state["numpy"]
    random.setstate(state["python"])
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"], device)
