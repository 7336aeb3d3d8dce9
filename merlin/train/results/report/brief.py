"""A trained model in short, from what an evaluation has left in the run's directory; needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from statistics import fmean, median
from typing import Any

from merlin.base.text import count, duration
from merlin.train.results.history import History
from merlin.train.results.report.agreement import score
from merlin.train.run_paths import RunPaths

PLOTS = "plots"


def plots(run: RunPaths) -> dict[str, Path]:
    """The charts that an evaluation has drawn, by name; drawings where there are any, else pictures."""
    folder = run.path / PLOTS
    found = {path.stem: path for path in sorted(folder.glob("*.png"))}
    return found | {path.stem: path for path in sorted(folder.glob("*.svg"))}


def quality_subtitle(facts: Mapping[str, Any]) -> str:
    place = f"trainer {facts['trainer']}, step {facts['step']:,}"
    split = "every sample" if facts["split"] == "all" else f"the split <code>{escape(facts['split'])}</code>"
    num = f"{facts['num_samples']:,} samples"
    return f"model <code>{escape(facts['model'])}</code> ({place}), evaluated on {num}: {split}"


def quality_cards(facts: Mapping[str, Any], history: History) -> list[tuple[str, str]]:
    found = [
        (f"{100 * of['accuracy']:.3g} %", f"accuracy of {escape(n)}") for n, of in facts["classes"].items()
    ]
    known = {name: of["r2"] for name, of in facts["scalars"].items() if of["r2"] == of["r2"]}
    if known:
        worst = min(known, key=lambda name: known[name])
        found.append((score(median(known.values())), "median R² of scalars"))
        found.append((score(known[worst]), f"lowest R²: {escape(worst)}"))
    if fields := list(facts["images"].values()):
        error, similarity = (fmean(of[key] for of in fields) for key in ("relative_l2", "ssim"))
        found.append((f"{100 * error:.2g} %", "relative L2 of images"))
        found.append((score(similarity), "SSIM of images"))
    seconds = max((t.train_s for t in history.trainers), default=0.0)
    found.append((duration(seconds), f"training, {count(len(history.trainers), 'trainer')}"))
    found.append((f"{facts['num_parameters']:,}", "parameters"))
    return found
