"""Held-out errors of the best model of a run, in the data set's units.

    evaluation = evaluate("runs/icf_20260101-120000")
    evaluation.facts["scalars"]["Yn"]["r2"]

Samples go through in batches. What grows with their number is four bytes for each image channel of a sample.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from merlin.base.files import write_text
from merlin.errors import UsageError
from merlin.train.config import TrainConfig
from merlin.train.config_file import load_config
from merlin.train.data import TrainingData, with_channels
from merlin.train.distributed import choose_device
from merlin.train.loading.columns import Column
from merlin.train.loading.dataset import ShardDataset
from merlin.train.quantities import Quantity
from merlin.train.results.best import BestModel, load_best
from merlin.train.results.held_out import choose_split, open_held_out
from merlin.train.results.physical import PhysicalModel, as_chw
from merlin.train.results.scores import ClassScores, ImageScores, ScalarScores
from merlin.train.results.similarity import ssim
from merlin.train.run_directory import RunDirectory, RunFacts, is_run

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], None]  # samples done, in all

FORMAT = "merlin-evaluation"
VERSION = 1
NAME = "evaluation.json"
MAX_POINTS = 4000  # samples whose scalars are kept for charts
NUM_SHOWN = 6  # samples whose images are kept
_BATCH_BYTES = 4 << 20
_MAX_BATCH = 1024
_SEED = 0


@dataclass(frozen=True)
class ImagesShown:
    """True and predicted images (k, C, H, W) of some samples, from the smallest error to the greatest."""

    quantity: Quantity
    sample_ids: tuple[int, ...]
    errors: tuple[float, ...]  # relative L2
    true: Array
    predicted: Array


@dataclass(frozen=True)
class Evaluation:
    """What `evaluation.json` says, and what charts are drawn of."""

    run: RunDirectory
    config: TrainConfig
    run_facts: RunFacts
    facts: dict[str, Any]
    scalars: dict[str, tuple[Array, Array]] = field(repr=False)  # true and predicted, of an even subset
    # inputs, of models that find them from outputs
    inferred: dict[str, tuple[Array, Array]] = field(repr=False)
    images: tuple[ImagesShown, ...] = field(repr=False)
    quantities: dict[str, Quantity] = field(repr=False)

    def save(self) -> Path:
        """Write `evaluation.json` into the run directory."""
        path = self.run.path / NAME
        write_text(path, json.dumps(_finite(self.facts), indent=1, ensure_ascii=False) + "\n")
        return path


def evaluate(
    run_path: str | os.PathLike[str],
    *,
    split: str | None = None,
    data: Path | None = None,
    device: str = "auto",
    trust_code: bool = False,
    progress: Progress = lambda done, total: None,
) -> Evaluation:
    """Evaluate the best model of a run on a split of its data set, or of another one with the same fields.

    The split is `test` by default, else `validation`; "all" is every sample. `trust_code` is that of `load_surrogate`.

    Raises:
        UsageError: this is no run, or there is no such split or field.
        TrainingError: the run has no best model yet.
        NotADataSetError, ShardError: the data set is gone, has changed, or is damaged.
    """
    run = RunDirectory(Path(run_path))
    if not is_run(run.path):
        raise UsageError(
            f"{run.path} is no training run: it has no run.json; give what `merlin train` has made"
        )
    chosen = choose_device(device, 0)
    best = load_best(run.path, str(chosen), trust_code=trust_code)
    run_facts, config = run.facts(), load_config(run.config_path).config
    held_out = open_held_out(best, config, run_facts.data_digest, data)
    digest = held_out.ens.manifest.content_digest
    dataset, name, note = choose_split(held_out, split, digest == run_facts.data_digest)
    judge = _Judge(best, held_out, dataset, chosen)
    judge.run(progress)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "run": str(run.path.resolve()),
        "model": best.name,
        "kind": judge.kind,
        "num_parameters": sum(p.numel() for p in best.trainee.parameters()),
        **{key: best.facts[key] for key in ("trainer", "step", "metric", "value")},
        "data": {"path": str(held_out.ens.path), "digest": digest},
        "split": name,
        "num_samples": len(dataset),
        "notes": [note] if note else [],
    }
    known = (*best.quantities.inputs, *best.quantities.outputs)
    return Evaluation(
        run, config, run_facts, {**about, **judge.results()}, judge.kept("scalars"), judge.kept("inputs"),
        judge.shown(), {q.name: q for q in known},
    )  # fmt: skip


class _Judge:
    """Takes samples through the model and adds up."""

    def __init__(
        self, best: BestModel, data: TrainingData, dataset: ShardDataset, device: torch.device
    ) -> None:
        self._best, self._data, self._dataset, self._device = best, data, dataset, device
        self._model = PhysicalModel(best.trainee, best.quantities, best.normaliser).to(device).eval()
        self.kind = "reconstruction" if hasattr(best.trainee, "reconstruct") else "prediction"
        plain = not any(q.shape for q in best.quantities.inputs)
        self._infers = hasattr(best.trainee, "infer") and plain
        if self.kind == "prediction":
            self._model.predicted()
        selection = data.selection
        classes = (found.column for found in selection.classes)
        self._truths = {c.name: c for c in (*selection.scalars, *selection.images, *classes)}
        self._quantities = {q.name: q for q in best.quantities.outputs}
        self._classes = {q.name: ClassScores(q.classes) for q in best.quantities.classes}
        self._scalars: dict[str, ScalarScores] = {}
        self._inputs: dict[str, ScalarScores] = {}
        self._images: dict[str, ImageScores] = {}
        self._metrics: dict[str, float] = {}
        num = min(len(dataset), MAX_POINTS)
        self._keep = np.unique(np.linspace(0, len(dataset) - 1, num).round().astype(np.int64))
        self._points: dict[str, dict[str, list[tuple[Array, Array]]]] = {"scalars": {}, "inputs": {}}

    def run(self, progress: Progress) -> None:
        num = len(self._dataset)
        with torch.random.fork_rng(self._devices), torch.inference_mode():
            torch.manual_seed(_SEED)
            for lo in range(0, num, self._step):
                hi = min(lo + self._step, num)
                self._add(lo, hi)
                progress(hi, num)

    @property
    def _devices(self) -> list[torch.device]:
        return [self._device] if self._device.type == "cuda" else []

    @property
    def _step(self) -> int:
        images = (*self._quantities.values(), *self._best.quantities.input_images)
        row_bytes = 8 * sum(int(np.prod(q.shape, dtype=np.int64)) for q in images)
        return max(1, min(_MAX_BATCH, _BATCH_BYTES // max(1, row_bytes)))

    def _add(self, lo: int, hi: int) -> None:
        index = np.arange(lo, hi)
        batch, made = self._apply(index)
        for name, values in self._best.trainee.metrics(batch).items():
            self._metrics[name] = self._metrics.get(name, 0.0) + float(values.double().sum())
        kept = self._keep[np.searchsorted(self._keep, lo) : np.searchsorted(self._keep, hi)] - lo
        rows = self._dataset.rows[index]
        for name, values in made.items():
            if name not in self._quantities:
                continue  # probabilities, which stand beside their class
            true = self._read(self._truths[name], rows)
            if name in self._classes:
                given = made[self._quantities[name].probabilities.name].cpu().numpy()
                self._classes[name].add(values.cpu().numpy(), true, given)
            elif self._quantities[name].shape:
                self._add_images(self._quantities[name], values, true)
            else:
                self._add_scalar("scalars", self._scalars, name, values.double().cpu().numpy(), true, kept)
        if self._infers:
            self._add_inferred(batch, rows, kept)

    def _apply(self, index: Array) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A normalised batch, and what the model makes of it, by name and in the data set's units."""
        batch = {key: v.to(self._device) for key, v in with_channels(self._dataset[index]).items()}
        if self.kind == "reconstruction":
            return batch, self._model.restored(self._best.trainee.reconstruct(batch))  # type: ignore[operator]
        return batch, self._model.predicted_from(batch)

    def _add_scalar(
        self, group: str, scores: dict[str, ScalarScores], name: str, values: Array, true: Array, kept: Array
    ) -> None:
        scores.setdefault(name, ScalarScores()).add(values, true)
        self._points[group].setdefault(name, []).append((true[kept], values[kept]))

    def _add_images(self, quantity: Quantity, values: Tensor, true: Array) -> None:
        found = as_chw(values, quantity).double().cpu()
        expected = as_chw(torch.from_numpy(true), quantity)
        scores = self._images.setdefault(quantity.name, ImageScores(quantity.shape_chw[0]))
        scores.add(found.numpy(), expected.numpy(), ssim(found, expected).numpy())

    def _add_inferred(self, batch: Mapping[str, Tensor], rows: Array, kept: Array) -> None:
        normalised = self._best.trainee.infer(batch)  # type: ignore[operator]
        found = self._model.inputs.inverse(normalised.double()).cpu().numpy()
        for i, column in enumerate(self._data.selection.inputs):
            true = self._read(column, rows)
            self._add_scalar("inputs", self._inputs, column.name, found[:, i], true, kept)

    def results(self) -> dict[str, Any]:
        """The errors, as `evaluation.json` has them."""
        num = len(self._dataset)
        images = {}
        for name, scores in self._images.items():
            quantity = self._quantities[name]
            names = [quantity.channel(i) for i in range(scores.channels)]
            images[name] = {"units": quantity.units, **scores.result(names)}
        return {
            "scalars": {
                n: {"units": self._quantities[n].units, **s.result()} for n, s in self._scalars.items()
            },
            "images": images,
            "classes": {name: scores.result() for name, scores in self._classes.items()},
            "inputs": {name: scores.result() for name, scores in self._inputs.items()},
            "metrics": {name: total / num for name, total in self._metrics.items()},
        }

    def kept(self, group: str) -> dict[str, tuple[Array, Array]]:
        """True and predicted values of the samples that charts show."""
        return {
            name: (np.concatenate([t for t, _ in parts]), np.concatenate([p for _, p in parts]))
            for name, parts in self._points[group].items()
        }

    def shown(self) -> tuple[ImagesShown, ...]:
        """Images of samples at even quantiles of the error, the worst one among them."""
        if not self._images:
            return ()
        errors = np.mean([scores.per_sample() for scores in self._images.values()], axis=0)
        order = np.argsort(errors, kind="stable")
        places = np.unique(
            np.linspace(0, len(order) - 1, min(NUM_SHOWN, len(order))).round().astype(np.int64)
        )
        index = order[places]
        rows = self._dataset.rows[index]
        with torch.inference_mode():
            _, made = self._apply(index)
        ids = tuple(int(i) for i in self._data.ens.sample_id[rows])
        return tuple(
            ImagesShown(
                self._quantities[name],
                ids,
                tuple(float(e) for e in scores.per_sample()[index]),
                as_chw(
                    torch.from_numpy(self._read(self._truths[name], rows)), self._quantities[name]
                ).numpy(),
                as_chw(made[name], self._quantities[name]).double().cpu().numpy(),
            )
            for name, scores in self._images.items()
        )

    def _read(self, column: Column, rows: Array) -> Array:
        return np.asarray(column.read(self._data.ens, rows), np.float64)


def _finite(value: Any) -> Any:
    """JSON has neither NaN nor infinity: they become null."""
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(entry) for entry in value]
    return value
