"""Held-out errors of the best model of a run, in the data set's units.

    evaluation = evaluate("runs/icf_20260101-120000")
    evaluation.facts["scalars"]["Yn"]["r2"]

Samples go through in batches. What grows with their number is four bytes for each image channel of a sample.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import Struct
from torch import Tensor

from merlin.base.files import write_text
from merlin.errors import UsageError
from merlin.shards.format.column import Column
from merlin.shards.format.segments import Array
from merlin.train.config import TrainConfig
from merlin.train.config_file import load_config
from merlin.train.data import OnProgress, TrainingData
from merlin.train.loading.dataset import ShardDataset
from merlin.train.parallel.world import choose_device
from merlin.train.quantities import Quantity
from merlin.train.random_state import seeded
from merlin.train.results.baseline import compare, spread_rows
from merlin.train.results.best import BestModel, load_best
from merlin.train.results.evaluation_file import FORMAT, NAME
from merlin.train.results.held_out import ALL, choose_split, open_held_out, rows_at_once
from merlin.train.results.physical import PhysicalModel, as_chw
from merlin.train.results.scales import Judged
from merlin.train.results.scores import ClassScores, ImageScores, ScalarScores
from merlin.train.results.similarity import ssim
from merlin.train.results.uncertainty import find_assessment
from merlin.train.run_directory import RunDirectory, RunFacts
from merlin.train.run_paths import is_run

MAX_POINTS = 4000  # samples whose scalars are kept for charts
NUM_SHOWN = 6  # samples whose images are kept
_SEED = 0


class ImagesShown(Struct, frozen=True):
    """True and predicted images (k, C, H, W) of some samples, from the smallest error to the greatest."""

    quantity: Quantity
    sample_ids: tuple[int, ...]
    errors: tuple[float, ...]  # relative L2
    true: Array
    predicted: Array


@dataclass(frozen=True)
class Evaluation:
    """The content of `evaluation.json`, and the values that charts are drawn of."""

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
        facts = json.loads(
            json.dumps(self.facts), parse_constant=lambda _: None
        )  # NaN and infinity become null
        write_text(path, json.dumps(facts, indent=1) + "\n")
        return path


def evaluate(
    run_path: str | os.PathLike[str],
    *,
    split: str | None = None,
    data: Path | None = None,
    device: str = "auto",
    trust_code: bool = False,
    progress: OnProgress = lambda done, total: None,
) -> Evaluation:
    """Evaluate the best model of a run on a split of its data set, or of another one with the same fields.

    The split is `test` by default, else `validation`; "all" is every sample. `trust_code` is that of
    `load_surrogate`. If trainers have ended with different models, the uncertainty that their ensemble
    predicts is measured, too.

    Raises:
        UsageError: this is no run, or there is no such split or field.
        TrainingError: the run has no best model yet.
        NotADataSetError, ShardError: the data set is gone, has changed, or is damaged.
    """
    run = RunDirectory(Path(run_path))
    if not is_run(run.path):
        raise UsageError(f"{run.path} is no training run: it has no run.json; give what `merlin train` made")
    chosen = choose_device(device, 0)
    best = load_best(run.path, str(chosen), trust_code=trust_code)
    run_facts, config = run.facts(), load_config(run.config_path).config
    held_out = open_held_out(best, config, run_facts, data)
    digest = held_out.ens.manifest.content_digest
    is_own = digest == run_facts.data_digest
    dataset, name, note = choose_split(held_out, split, is_own)
    evaluator = _RunEvaluator(best, held_out, dataset, chosen)
    assessment, reason = find_assessment(run, best, Judged(held_out, dataset, name), is_own, chosen)
    passes = _Passes(progress, len(dataset) + (assessment.num_samples if assessment else 0))
    evaluator.run(passes)
    results = evaluator.results()
    facts = {
        **FORMAT.head(),
        "run": str(run.path.resolve()),
        **_model_facts(best, evaluator.kind),
        "data": {"path": str(held_out.ens.path), "digest": digest},
        "split": name,
        "num_samples": len(dataset),
        "notes": [text for text in (note, reason) if text],
        **results,
        "baseline": _baseline(best, held_out, dataset, name) if is_own else None,
        "uncertainty": assessment.run(results, passes).to_json() if assessment else None,
    }
    known = {q.name: q for q in (*best.quantities.inputs, *best.quantities.outputs)}
    points = evaluator.scalars.points(), evaluator.inputs.points()
    return Evaluation(run, config, run_facts, facts, *points, evaluator.shown(), known)


def _model_facts(best: BestModel, kind: str) -> dict[str, Any]:
    """Which model it is; `kind` is what it is judged by."""
    num = sum(p.numel() for p in best.trainee.parameters())
    known = {key: best.facts[key] for key in ("trainer", "step", "metric", "value")}
    return {"model": best.name, "kind": kind, "num_parameters": num, **known}


def _baseline(best: BestModel, data: TrainingData, dataset: ShardDataset, split: str) -> Any:
    """The comparison with baselines; None on samples that these know."""
    if split in (data.config.splits.train, ALL):
        return None
    found = compare(best, data, dataset, split)
    return None if found is None else found.to_json()


class _Passes:
    """Reports the progress of several passes over samples as that of one pass."""

    def __init__(self, progress: OnProgress, total: int) -> None:
        self._progress, self._total, self._before = progress, total, 0

    def __call__(self, done: int, num: int) -> None:
        self._progress(self._before + done, self._total)
        if done == num:
            self._before += num


class _Scalars:
    """The scores of scalars, and the values of those samples that charts show."""

    def __init__(self) -> None:
        self.scores: defaultdict[str, ScalarScores] = defaultdict(ScalarScores)
        self._points: defaultdict[str, list[tuple[Array, Array]]] = defaultdict(list)

    def add(self, name: str, values: Array, true: Array, kept: Array) -> None:
        self.scores[name].add(values, true)
        self._points[name].append((true[kept], values[kept]))

    def points(self) -> dict[str, tuple[Array, Array]]:
        """True and predicted values."""
        return {
            name: (np.concatenate([true for true, _ in parts]), np.concatenate([found for _, found in parts]))
            for name, parts in self._points.items()
        }


class _RunEvaluator:
    """Takes samples through the model and adds up."""

    def __init__(
        self, best: BestModel, data: TrainingData, dataset: ShardDataset, device: torch.device
    ) -> None:
        self._best, self._data, self._dataset, self._device = best, data, dataset, device
        model = PhysicalModel(best.name, best.trainee, best.quantities, best.normaliser)
        self._model = model.to(device).eval()
        self.kind = "reconstruction" if hasattr(best.trainee, "reconstruct") else "prediction"
        self._infers = hasattr(best.trainee, "infer") and not any(q.shape for q in best.quantities.inputs)
        if self.kind == "prediction":
            self._model.predicted()
        selection = data.selection
        classes = (found.column for found in selection.classes)
        self._truths = {c.name: c for c in (*selection.scalars, *selection.images, *classes)}
        self._quantities = {q.name: q for q in best.quantities.outputs}
        self._classes = {q.name: ClassScores(q.classes) for q in best.quantities.classes}
        self.scalars, self.inputs = _Scalars(), _Scalars()
        self._images: dict[str, ImageScores] = {}
        self._metrics: defaultdict[str, float] = defaultdict(float)
        self._keep = spread_rows(len(dataset), MAX_POINTS)

    def run(self, progress: OnProgress) -> None:
        seen = (*self._quantities.values(), *self._best.quantities.input_images)
        num, step = len(self._dataset), rows_at_once(seen)
        infinite = np.errstate(over="ignore", invalid="ignore")  # squared errors of huge values
        with seeded(_SEED, self._device), torch.inference_mode(), infinite:
            for lo in range(0, num, step):
                hi = min(lo + step, num)
                self._add(lo, hi)
                progress(hi, num)

    def _add(self, lo: int, hi: int) -> None:
        index = np.arange(lo, hi)
        batch, made = self._apply(index)
        for name, values in self._best.trainee.metrics(batch).items():
            self._metrics[name] += float(values.double().sum())
        kept = self._keep[np.searchsorted(self._keep, lo) : np.searchsorted(self._keep, hi)] - lo
        rows = self._dataset.rows[index]
        for name, quantity in self._quantities.items():
            if name not in made:
                continue
            true = self._read(self._truths[name], rows)
            if quantity.classes:
                given = made[quantity.probabilities.name].cpu().numpy()
                self._classes[name].add(made[name].cpu().numpy(), true, given)
            elif quantity.shape:
                self._add_images(quantity, made[name], true)
            else:
                self.scalars.add(name, made[name].double().cpu().numpy(), true, kept)
        if self._infers:
            self._add_inferred(batch, rows, kept)

    def _apply(self, index: Array) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """A normalised batch, and what the model makes of it, by name and in the data set's units."""
        delivered = self._data.shapes.with_channels(self._dataset[index])
        batch = {key: values.to(self._device) for key, values in delivered.items()}
        if self.kind == "reconstruction":
            made = self._best.trainee.reconstruct(batch)  # type: ignore[operator]
            return batch, self._model.restored(made, len(index))
        return batch, self._model.predicted_from(batch)

    def _add_images(self, quantity: Quantity, values: Tensor, true: Array) -> None:
        found = as_chw(values, quantity).double().cpu()
        expected = as_chw(torch.from_numpy(true), quantity)
        scores = self._images.setdefault(quantity.name, ImageScores(quantity.shape_chw[0]))
        scores.add(found.numpy(), expected.numpy(), ssim(found, expected).numpy())

    def _add_inferred(self, batch: Mapping[str, Tensor], rows: Array, kept: Array) -> None:
        normalised = self._best.trainee.infer(batch)  # type: ignore[operator]
        found = self._model.inputs.inverse(normalised.double()).cpu().numpy()
        for i, column in enumerate(self._data.selection.inputs):
            self.inputs.add(column.name, found[:, i], self._read(column, rows), kept)

    def results(self) -> dict[str, Any]:
        """The errors, as `evaluation.json` has them."""
        known, images = self._quantities, {}
        for name, scores in self._images.items():
            names = [known[name].channel(i) for i in range(scores.channels)]
            images[name] = {"units": known[name].units, **scores.result(names)}
        scalars = self.scalars.scores.items()
        return {
            "scalars": {name: {"units": known[name].units, **of.result()} for name, of in scalars},
            "images": images,
            "classes": {name: of.result() for name, of in self._classes.items()},
            "inputs": {name: of.result() for name, of in self.inputs.scores.items()},
            "metrics": {name: total / len(self._dataset) for name, total in self._metrics.items()},
        }

    def shown(self) -> tuple[ImagesShown, ...]:
        """Images of samples at even quantiles of the error, the worst one among them."""
        if not self._images:
            return ()
        each = {name: scores.per_sample() for name, scores in self._images.items()}
        order = np.argsort(np.mean(list(each.values()), axis=0), kind="stable")
        index = order[spread_rows(len(order), NUM_SHOWN)]
        rows = self._dataset.rows[index]
        with torch.inference_mode():
            _, made = self._apply(index)
        ids = tuple(int(i) for i in self._data.ens.sample_id[rows])
        found = []
        for name, errors in each.items():
            quantity = self._quantities[name]
            true = as_chw(torch.from_numpy(self._read(self._truths[name], rows)), quantity).numpy()
            predicted = as_chw(made[name], quantity).double().cpu().numpy()
            found.append(ImagesShown(quantity, ids, tuple(map(float, errors[index])), true, predicted))
        return tuple(found)

    def _read(self, column: Column, rows: Array) -> Array:
        return np.asarray(self._data.ens.column_at(column.path)[rows], np.float64)
