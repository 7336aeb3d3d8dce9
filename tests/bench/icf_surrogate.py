"""The ICF study's surrogate against a plain regressor, both from the same samples and as often: errors per quantity.

And where the errors of surrogates come from: the published model and ours with one thing changed at a time.
"""

from __future__ import annotations

import json
import resource
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from measure import MERLIN, fresh, only_workspace, run
from report import Row

ICF = Path(__file__).resolve().parents[2] / "specs" / "icf"
EPOCHS = 28
ABLATION_EPOCHS = 10
_ONE = ("tournament.trainers=1",)
_ALL = f"training.epochs={ABLATION_EPOCHS}"
_PUBLISHED = "published: frozen autoencoder, then generators"
# what is changed, and the words that change it; the last one is the published model, which has two runs
CHANGES: dict[str, Sequence[str]] = {
    "as configured": (_ALL,),
    "image_weight: 1": (_ALL, "model.image_weight=1"),
    "latent: 5, as many as inputs": (_ALL, "model.latent=5"),
    "width: 256": (_ALL, "model.width=256"),
    "components: 64": (_ALL, "model.components=64"),
    "cycle: 0": (_ALL, "model.cycle=0"),
    "half of the visits": (f"training.epochs={ABLATION_EPOCHS // 2}",),
}


@dataclass(frozen=True)
class Result:
    """Errors of scalars by their standard deviations, of images as relative L2 norm and lack of similarity."""

    scalars: dict[str, float]
    images: dict[str, float]
    cpu_s: float

    @property
    def brief(self) -> str:
        image = median(v for name, v in self.images.items() if "L2" in name)
        return f"{median(self.scalars.values()):.2%}, {max(self.scalars.values()):.2%}, {image:.2%}"


def surrogate(tmp: Path, rounds: int, num: int) -> list[Row]:
    """One run of each, whatever the number of rounds."""
    data = _data(tmp, num)
    ours = _trained("surrogate", tmp / "surrogate", data, [*_ONE, f"training.epochs={EPOCHS}"])
    other = _trained("regressor", tmp / "regressor", data, [f"training.epochs={EPOCHS}"])
    what = f"ICF surrogate ({num:,} samples, {EPOCHS} epochs)"
    against = "against a plain regressor at equal visits"
    ratios = {name: value / other.scalars[name] for name, value in ours.scalars.items()}
    worst = max(ratios, key=lambda name: ratios[name])
    middle = [f"{median(of.scalars.values()):.2%}" for of in (ours, other)]
    ends = [f"{of.scalars[worst]:.2%}" for of in (ours, other)]
    scalars = f"{what}, error of scalars (RMSE / std), median of the fields' ratios, {against}"
    rows = [
        Row(scalars, *middle, f"{median(ratios.values()):.2f}×", "≤ 1.0×"),
        Row(f"{what}, the worst of these ratios: {worst}", *ends, f"{ratios[worst]:.2f}×", "≤ 1.2×"),
    ]
    for name, value in ours.images.items():
        known = (f"{value:.2%}", f"{other.images[name]:.2%}", f"{value / other.images[name]:.2f}×")
        floor = "≤ 1.0×" if "L2" in name else "reported"
        rows.append(Row(f"{what}, error of {name}, {against}", *known, floor))
    times = f"{ours.cpu_s / other.cpu_s:.2f}×"
    spent = (f"{ours.cpu_s:.0f} s", f"{other.cpu_s:.0f} s", times, "reported")
    return [*rows, Row(f"{what}, processor time of the training, {against}", *spent)]


def trained_surrogate(tmp: Path, num: int) -> Path:
    """The run of a surrogate of so many samples."""
    _trained("surrogate", tmp / "surrogate", _data(tmp, num), [*_ONE, f"training.epochs={EPOCHS}"])
    return tmp / "surrogate"


def ablation(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Errors (median scalar, worst scalar, image) of surrogates beside those of the regressor; one run of each."""
    data = _data(tmp, num)
    plain = _trained("regressor", tmp / "regressor", data, [_ALL])
    found = {
        name: _trained("surrogate", tmp / f"changed_{i}", data, [*_ONE, *words])
        for i, (name, words) in enumerate(CHANGES.items())
    }
    for name, words in {_PUBLISHED: (), f"{_PUBLISHED}; adversarial: 0": ("model.adversarial=0",)}.items():
        found |= _published(tmp / f"published_{len(words)}", data, name, words)
    return [
        Row(f"ablation: {name}", of.brief, plain.brief, f"{of.cpu_s:.0f} s / {plain.cpu_s:.0f} s", "reported")
        for name, of in found.items()
    ]


def _published(place: Path, data: Path, name: str, words: Sequence[str]) -> dict[str, Result]:
    """The autoencoder's reconstructions, and the surrogate on top of it; 4 epochs of 10 are the autoencoder's."""
    first = ABLATION_EPOCHS * 4 // 10
    coder = _trained("autoencoder", place / "autoencoder", data, [f"training.epochs={first}", *words])
    source = f"model.autoencoder={place / 'autoencoder'}"
    rest = [source, f"training.epochs={ABLATION_EPOCHS - first}", *words]
    made = _trained("published", place / "surrogate", data, rest)
    both = Result(made.scalars, made.images, made.cpu_s + coder.cpu_s)
    return {f"{name}, its autoencoder's reconstruction": coder, name: both}


def _data(tmp: Path, num: int) -> Path:
    folder = fresh(tmp / "icf")
    variables = [f"N_SAMPLES={num}", f"OUTPUT_PATH={folder}"]
    run([MERLIN, "run", str(ICF / "icf.yaml"), "--vars", *variables, "--local"], folder)
    return only_workspace(folder) / "collect"


def _trained(config: str, place: Path, data: Path, words: Sequence[str]) -> Result:
    """Train by one thread, and evaluate."""
    log = fresh(place.parent / f"{place.name}_log")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    usual = [f"data={data}", f"directory={place}", "training.threads=1"]
    run([MERLIN, "train", str(ICF / "train" / f"{config}.yaml"), *usual, *words], log)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    run([MERLIN, "evaluate", str(place)], log)
    return _result(place, cpu_s)


def _result(directory: Path, cpu_s: float) -> Result:
    found: dict[str, Any] = json.loads((directory / "evaluation.json").read_text())
    images = {}
    for name, of in found["images"].items():
        images[f"{name} (relative L2)"] = of["relative_l2"]
        images[f"{name} (1 - SSIM)"] = 1.0 - of["ssim"]
    return Result({name: of["rmse"] / of["std"] for name, of in found["scalars"].items()}, images, cpu_s)
