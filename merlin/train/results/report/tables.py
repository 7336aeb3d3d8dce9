"""Numbers of an evaluation as HTML tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from math import isnan, nan
from typing import TYPE_CHECKING, Any

from merlin.base.page.table import facts_table, table
from merlin.base.text import duration
from merlin.base.yaml_text import yaml_text
from merlin.shards.plot.ticks import number
from merlin.train.results.history import History
from merlin.train.results.intervals import SHOWN
from merlin.train.results.report.agreement import score

if TYPE_CHECKING:
    from merlin.train.results.evaluate import Evaluation

_MEASURES = {"rmse": "RMSE", "relative_l2": "relative L2"}
_MAX_CONFUSED = 20  # classes of a table with a line and a column for each

# cells of what was scored, by the title of their column
Shown = Mapping[str, Callable[[Mapping[str, Any]], str]]


def _percent(value: float) -> str:
    return "–" if value != value else f"{number(100 * value)} %"


_SCALARS: Shown = {
    "R²": lambda found: score(found["r2"]),
    "relative L2": lambda found: _percent(found["relative_l2"]),
    "RMSE": lambda found: number(found["rmse"]),
    "mean |error|": lambda found: number(found["mae"]),
    "bias": lambda found: number(found["bias"]),
    "greatest |error|": lambda found: number(found["max_error"]),
    "std of truth": lambda found: number(found["std"]),
}
_IMAGES: Shown = {
    "relative L2": lambda found: _percent(found["relative_l2"]),
    "of the median sample": lambda found: _percent(found["per_sample"]["median"]),
    "90 % below": lambda found: _percent(found["per_sample"]["p90"]),
    "greatest": lambda found: _percent(found["per_sample"]["max"]),
    "SSIM": lambda found: score(found["ssim"]),
    "R²": lambda found: score(found["r2"]),
}
_CLASSES: Shown = {
    "accuracy": lambda found: _percent(found["accuracy"]),
    "always the most frequent": lambda found: _percent(found["most_frequent"]),
    "cross-entropy": lambda found: number(found["cross_entropy"], 4),
}
_CLASS: Shown = {
    "samples": lambda of: f"{of['num_samples']:,}",
    "found (recall)": lambda of: _percent(of["recall"]),
    "right where said (precision)": lambda of: _percent(of["precision"]),
}


def _scores(shown: Shown, lines: Iterable[tuple[str, Mapping[str, Any]]], first: str = "") -> str:
    """A line for each thing that was scored: its name, in HTML, and its numbers."""
    rows = [[name, *(cell(found) for cell in shown.values())] for name, found in lines]
    return table((first, *shown), rows, right=tuple(shown))


def _named(scores: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, found in scores.items():
        units = escape(found.get("units", ""))
        yield f"<b>{escape(name)}</b>" + (f' <span class="sub">{units}</span>' if units else ""), found


def baseline_table(found: Mapping[str, Any] | None) -> str:
    """The model beside a linear one and the nearest neighbour; "" if they were not compared."""
    if found is None:
        return ""
    names = {"model": "this model", "linear": "linear model", "nearest": "nearest neighbour"}
    rows = []
    for who, name in names.items():
        # numbers that were not finite are null in JSON
        known = {field: _number(of[who]) for field, of in found["fields"].items() if who in of}
        if known:
            worst = max(known, key=lambda field: (isnan(known[field]), known[field]))
            middle = _percent(_number(found["median_error"][who]))
            rows.append([f"<b>{name}</b>", middle, f"{_percent(known[worst])} ({escape(worst)})"])
    worse = ", ".join(map(escape, found["not_better"]))
    note = f'<p class="remark">The model is no better than a baseline for: {worse}</p>' if worse else ""
    columns = ("error, in percent of the spread", "median field", "worst field")
    return note + table(columns, rows, right=columns[1:])


def uncertainty_table(found: Mapping[str, Any]) -> str:
    """The mean of an ensemble beside the published model, and what its intervals hold, as they are and scaled."""
    places = [found["levels"].index(level) for level in SHOWN]
    columns = (
        "error of the best model",
        "of the mean",
        "factor",
        *(f"in {100 * level:.0f} %" for level in SHOWN),
    )
    rows = []
    for name, of in found["fields"].items():
        error, shares = of["error"], of["coverage"]
        measure = _MEASURES[error["measure"]] + (
            f", {of['units']}" if of["units"] and error["measure"] == "rmse" else ""
        )
        held = (f"{_share(shares['raw'][i])} → <b>{_share(shares['scaled'][i])}</b>" for i in places)
        first = f'<b>{escape(name)}</b> <span class="sub">{escape(measure)}</span>'
        rows.append([first, number(error["best"]), number(error["mean"]), number(of["scale"]), *held])
    notes = [found["sentence"], *found["notes"]]
    note = "".join(f'<p class="note">{escape(text[:1].upper() + text[1:])}.</p>' for text in notes)
    return note + table(("", *columns), rows, right=columns)


def _share(value: float) -> str:
    return "–" if value != value else f"{100 * value:.0f} %"


def _number(value: float | None) -> float:
    return nan if value is None else value


def scalars_table(scores: Mapping[str, Any]) -> str:
    return _scores(_SCALARS, _named(scores))


def classes_tables(scores: Mapping[str, Any]) -> str:
    """The numbers of every field, and how often each class was taken for which."""
    parts = [_scores(_CLASSES, _named(scores))]
    for name, found in scores.items():
        known = [(f"<b>{of['class']}</b>", of) for of in found["classes"]]
        parts.append(f"<h3>{escape(name)}</h3>\n{_scores(_CLASS, known, 'class')}")
        if len(known) <= _MAX_CONFUSED:
            parts.append(_confusion(found))
    return "\n".join(parts)


def _confusion(found: Mapping[str, Any]) -> str:
    names = [str(of["class"]) for of in found["classes"]]
    rows = [
        [f"<b>{name}</b>", *(f"{num:,}" if num else "" for num in counts)]
        for name, counts in zip(names, found["confusion"], strict=True)
    ]
    note = '<p class="note">Samples by true class (lines) and predicted class (columns).</p>'
    return note + table(("", *names), rows, right=names)


def images_table(scores: Mapping[str, Any]) -> str:
    """Every field, and below it its channels."""
    lines = []
    for name, found in _named(scores):
        lines.append((name, found))
        if len(found["channels"]) > 1:
            lines += [(f'<span class="in">{escape(of["name"])}</span>', of) for of in found["channels"]]
    return _scores(_IMAGES, lines)


def metrics_table(facts: Mapping[str, Any], history: History, validation: str) -> str:
    """The model's own metrics here and, of the best model, on the validation split; on normalised values."""
    rows = []
    for name, value in facts["metrics"].items():
        known = [
            float(curve.values[i])
            for curve in history.validation.get(name, ())
            for i, step in enumerate(curve.steps)
            if (curve.trainer, step) == (facts["trainer"], facts["step"])
        ]
        judged = " (decides which model is best)" if name == facts["metric"] else ""
        before = number(known[0], 4) if known else ""
        rows.append([f"<b>{escape(name)}</b>{judged}", number(value, 4), before])
    columns = ("", facts["split"], f"{validation}, in training")
    note = '<p class="note">As the model computes them, on normalised values.</p>'
    return note + table(columns, rows, right=columns[1:])


def trainers_table(history: History, best: int | None) -> str:
    """How far each trainer came; a star is at the one that has the best model."""
    origins = history.origins() if history.rounds else {}
    columns = ["trainer", "steps", "samples/s", "training", "state"]
    right = ["steps", "samples/s", "training", "rounds", "took over"]
    if origins:
        columns += ["rounds", "took over", "model began in"]
    capacities = history.capacities()
    columns += ["capacity"] if capacities else []
    rows = []
    for trained in history.trainers:
        mine = [played for played in history.rounds if played.trainer == trained.trainer]
        star = " ★" if trained.trainer == best else ""
        row = [f"<b>{trained.trainer}</b>{star}", f"{trained.step:,}", f"{trained.samples_per_s:,.0f}",
               duration(trained.train_s), trained.state or "not ended"]  # fmt: skip
        if origins:
            taken = sum(played.kept == "partner" for played in mine)
            row += [f"{len(mine):,}", f"{taken:,}", f"trainer {origins[trained.trainer][-1]}"]
        if capacities:
            known = capacities.get(trained.trainer)
            row.append("as configured" if known is None else number(known))
        rows.append(row)
    note = "" if best is None else '<p class="note">★ has the best model.</p>'
    return table(columns, rows, right=right) + note


def provenance_table(evaluation: Evaluation) -> str:
    facts, run = evaluation.facts, evaluation.run_facts
    splits = ", ".join(f"{name} {num:,}" for name, num in run.num_samples.items())
    known = {
        "run": facts["run"],
        "begun": f"{run.created} on {run.host}",
        "code": f"merlin {run.code_version}, torch {run.torch}, Python {run.python}",
        "seed": str(run.seed),
        "trained on": f"{run.data_path} ({splits})",
        "evaluated on": f"{facts['data']['path']}, {facts['split']}",
        "data digest": facts["data"]["digest"],
        "inputs": ", ".join(q.name for q in run.quantities.inputs) or ", ".join(run.inputs),
    }
    config = escape(yaml_text(evaluation.config.to_json()))
    listed = facts_table(known.items())
    return f"{listed}\n<details><summary>The whole configuration</summary><pre>{config}</pre></details>"
