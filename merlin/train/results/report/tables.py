"""Numbers of an evaluation as HTML tables."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from merlin.base.text import duration
from merlin.shards.plot.tables import table
from merlin.shards.plot.ticks import number
from merlin.spec.provenance import dump_data
from merlin.train.results.evaluate import Evaluation
from merlin.train.results.history import History
from merlin.train.results.report.agreement import score

_MAX_CONFUSED = 20  # classes of a table with a line and a column for each


def scalars_table(scores: Mapping[str, Any]) -> str:
    rows = [
        [_name(name, found), score(found["r2"]), _percent(found["relative_l2"]), number(found["rmse"]),
         number(found["mae"]), number(found["bias"]), number(found["max_error"]),
         number(found["std"])]
        for name, found in scores.items()
    ]  # fmt: skip
    columns = ("", "R²", "relative L2", "RMSE", "mean |error|", "bias", "greatest |error|", "std of truth")
    return table(columns, rows, right=columns[1:])


def _name(name: str, found: Mapping[str, Any]) -> str:
    units = found.get("units", "")
    return f"<b>{escape(name)}</b>" + (f' <span class="sub">{escape(units)}</span>' if units else "")


def classes_tables(scores: Mapping[str, Any]) -> str:
    """Of every field its numbers, and how often each class was taken for which."""
    rows = [
        [_name(name, found), _percent(found["accuracy"]), _percent(found["most_frequent"]),
         number(found["cross_entropy"], 4)]
        for name, found in scores.items()
    ]  # fmt: skip
    columns = ("", "accuracy", "always the most frequent", "cross-entropy")
    parts = [table(columns, rows, right=columns[1:])]
    for name, found in scores.items():
        parts.append(f"<h3>{escape(name)}</h3>\n{_of_classes(found)}")
        if len(found["classes"]) <= _MAX_CONFUSED:
            parts.append(_confusion(found))
    return "\n".join(parts)


def _of_classes(found: Mapping[str, Any]) -> str:
    rows = [
        [f"<b>{of['class']}</b>", f"{of['num_samples']:,}", _percent(of["recall"]), _percent(of["precision"])]
        for of in found["classes"]
    ]
    columns = ("class", "samples", "found (recall)", "right where said (precision)")
    return table(columns, rows, right=columns[1:])


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
    rows = []
    for name, found in scores.items():
        rows.append([_name(name, found), *_image_cells(found)])
        if len(found["channels"]) > 1:
            for channel in found["channels"]:
                rows.append([f'<span class="in">{escape(channel["name"])}</span>', *_image_cells(channel)])
    columns = ("", "relative L2", "of the median sample", "90 % below", "greatest", "SSIM", "R²")
    return table(columns, rows, right=columns[1:])


def _image_cells(found: Mapping[str, Any]) -> list[str]:
    error = found["per_sample"]
    return [
        _percent(found["relative_l2"]),
        *(_percent(error[key]) for key in ("median", "p90", "max")),
        score(found["ssim"]),
        score(found["r2"]),
    ]


def metrics_table(evaluation: Evaluation, history: History) -> str:
    """The model's own metrics here and, of the best model, on the validation split; on normalised values."""
    names = list(evaluation.facts["metrics"])
    best = (evaluation.facts["trainer"], evaluation.facts["step"])
    rows = []
    for name in names:
        known = [
            value
            for curve in history.validation.get(name, ())
            if curve.trainer == best[0]
            for step, value in zip(curve.steps.tolist(), curve.values.tolist(), strict=True)
            if step == best[1]
        ]
        judged = " (decides which model is best)" if name == evaluation.facts["metric"] else ""
        rows.append(
            [f"<b>{escape(name)}</b>{judged}", number(evaluation.facts["metrics"][name], 4),
             number(known[0], 4) if known else ""]
        )  # fmt: skip
    note = '<p class="note">As the model computes them, on normalised values.</p>'
    columns = ("", evaluation.facts["split"], f"{evaluation.config.splits.validation}, in training")
    if columns[1] == columns[2]:
        columns = ("", "here", columns[2])
    return note + table(columns, rows, right=columns[1:])


def trainers_table(evaluation: Evaluation, history: History) -> str:
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
        star = " ★" if trained.trainer == evaluation.facts["trainer"] else ""
        row = [f"<b>{trained.trainer}</b>{star}", f"{trained.step:,}", f"{trained.samples_per_s:,.0f}",
               duration(trained.train_s), trained.state or "not ended"]  # fmt: skip
        if origins:
            taken = sum(played.kept == "partner" for played in mine)
            row += [f"{len(mine):,}", f"{taken:,}", f"trainer {origins[trained.trainer][-1]}"]
        if capacities:
            known = capacities.get(trained.trainer)
            row.append("as configured" if known is None else number(known))
        rows.append(row)
    return table(columns, rows, right=right) + '<p class="note">★ has the best model.</p>'


def provenance_table(evaluation: Evaluation) -> str:
    facts, run = evaluation.facts, evaluation.run_facts
    splits = ", ".join(f"{name} {num:,}" for name, num in run.num_samples.items())
    known = [
        ("run", facts["run"]),
        ("begun", f"{run.created} on {run.host}"),
        ("code", f"merlin {run.code_version}, torch {run.torch}, Python {run.python}"),
        ("seed", str(run.seed)),
        ("trained on", f"{run.data_path} ({splits})"),
        ("evaluated on", f"{facts['data']['path']}, {facts['split']}"),
        ("data digest", facts["data"]["digest"]),
        ("inputs", ", ".join(q.name for q in run.quantities.inputs) or ", ".join(run.inputs)),
    ]
    rows = [[label, f"<code>{escape(value)}</code>"] for label, value in known]
    listed = table(("", ""), rows).replace("<thead><tr><th></th><th></th></tr></thead>", "")
    config = escape(dump_data(evaluation.config.to_json()))
    return f"{listed}\n<details><summary>The whole configuration</summary><pre>{config}</pre></details>"


def _percent(value: float) -> str:
    return "–" if value != value else f"{number(100 * value)} %"
