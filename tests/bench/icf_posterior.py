"""The inverse problem of the ICF study: which inputs may have led to outputs that were measured with noise?

The posterior of held-out implosions is sampled through the surrogate by differential evolution Markov chains (ter
Braak, Statistics and Computing 16, 239, 2006), which begin where the inverse model says. The likelihood knows the noise
of the measurement, and the surrogate's own error on the validation split. If it is right, intervals hold the truth as
often as they say.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from icf_surrogate import trained_surrogate
from report import Row
from torch import Tensor

from merlin.train.config_file import load_config
from merlin.train.models.latent_surrogate import LatentSurrogate
from merlin.train.prepare import open_data
from merlin.train.results.best import load_best
from merlin.train.run_directory import RunDirectory

NUM_OBSERVED, NUM_CHAINS, NUM_STEPS, NUM_IGNORED = 64, 10, 500, 200
NUM_COMPONENTS = 20  # of the image, beside all scalars
NOISE = 0.05  # of the spread of each number that is measured
LEVELS = (0.5, 0.9)


def posterior(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One surrogate, whatever the number of rounds."""
    drawn, true, start = samples_of(trained_surrogate(tmp, num))
    rows = []
    for level in LEVELS:
        low, high = (np.quantile(drawn, 0.5 + sign * level / 2, axis=1) for sign in (-1, 1))
        held = ((low <= true) & (true <= high)).mean()
        what = f"inputs of {len(true)} held-out implosions, from outputs with {NOISE:.0%} noise"
        what += f": {level:.0%} intervals that hold the truth"
        rows.append(Row(what, f"{held:.1%}", f"{level:.0%}", "", "reported"))
    errors = [np.sqrt(np.square(found - true).mean()) for found in (drawn.mean(1), start)]
    what = "root mean square error of the posterior's mean, against the inverse model alone (spread of an input: 1)"
    times = f"{errors[1] / errors[0]:.2f}×"
    return [*rows, Row(what, f"{errors[0]:.4f}", f"{errors[1]:.4f}", times, "reported")]


def samples_of(directory: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws (observations, draws, inputs), the true inputs, and what the inverse model says; normalised."""
    run = RunDirectory(directory)
    data, model = open_data(run, load_config(run.config_path).config), load_best(directory).trainee
    assert isinstance(model, LatentSurrogate)
    torch.manual_seed(0)
    with torch.inference_mode():
        batches = {name: dataset[np.arange(min(len(dataset), 512))] for name, dataset in
                   ((split, data.dataset(split)) for split in ("train", "validation", "test"))}  # fmt: skip
        seen = {name: _measured(model, batch)[:, : 15 + NUM_COMPONENTS] for name, batch in batches.items()}
        inputs = {name: batch["inputs"] for name, batch in batches.items()}

        def predict(x: Tensor) -> Tensor:
            return model.decoder(model.forward_generator(x))[:, : 15 + NUM_COMPONENTS]

        own = (predict(inputs["validation"]) - seen["validation"]).square().mean(0)
        true = inputs["test"][:NUM_OBSERVED]
        noisy = _measured(model, batches["test"])[:NUM_OBSERVED]
        noisy = noisy + NOISE * torch.randn_like(noisy)
        start = model.inverse_generator(model.encoder(noisy))
        limits = inputs["train"].amin(0), inputs["train"].amax(0)
        observed = noisy[:, : 15 + NUM_COMPONENTS]

        def likelihood(x: Tensor) -> Tensor:
            apart = predict(x.flatten(0, 1)).unflatten(0, x.shape[:2]) - observed.unsqueeze(1)
            found = -0.5 * (apart.square() / (NOISE**2 + own)).sum(2)
            return found.where(((x >= limits[0]) & (x <= limits[1])).all(2), -torch.inf)

        begin = torch.clamp(start, *limits).unsqueeze(1)
        begin = torch.clamp(begin + 0.02 * torch.randn(len(true), NUM_CHAINS, true.shape[1]), *limits)
        drawn = _chains(begin, likelihood)
    return drawn.numpy(), true.numpy(), start.numpy()


def _measured(model: LatentSurrogate, batch: dict[str, Tensor]) -> Tensor:
    """Scalars, and the image's coefficients."""
    assert model.basis is not None
    return torch.cat([batch["scalars"], model.basis.encode(batch)[0]], 1)


def _chains(x: Tensor, likelihood: Callable[[Tensor], Tensor]) -> Tensor:
    """All states after the first ones, (observations, states, inputs)."""
    num, (chains, size) = len(x), x.shape[1:]
    known, kept = likelihood(x), []
    for step in range(NUM_STEPS):
        others = torch.stack([torch.randperm(chains - 1)[:2] for _ in range(chains)])
        others = others + (others >= torch.arange(chains).unsqueeze(1))  # never itself
        scale = 1.0 if step % 10 == 0 else 2.38 / (2 * size) ** 0.5
        proposed = x + scale * (x[:, others[:, 0]] - x[:, others[:, 1]]) + 1e-4 * torch.randn_like(x)
        found = likelihood(proposed)
        taken = torch.rand(num, chains).log() < found - known
        x = torch.where(taken.unsqueeze(2), proposed, x)
        known = torch.where(taken, found, known)
        if step >= NUM_IGNORED:
            kept.append(x)
    return torch.cat(kept, 1)
