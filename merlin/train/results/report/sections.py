"""From an evaluation and a history to the charts that are worth drawing."""

from __future__ import annotations

from functools import partial

from merlin.shards.plot import images
from merlin.shards.plot.canvas import Section
from merlin.train.results.evaluate import MAX_POINTS, Evaluation
from merlin.train.results.history import History
from merlin.train.results.report import agreement, curves, lineage, pictures


def make_sections(evaluation: Evaluation, history: History) -> dict[str, Section]:
    """Charts by the name of their file, in the order of the page."""
    made: dict[str, Section] = {}
    facts = evaluation.facts
    verb = "reconstructed" if facts["kind"] == "reconstruction" else "predicted"
    for shown in evaluation.images:
        sheet = pictures.sheet_of(shown, verb)
        note = (
            f"{len(shown.sample_ids)} samples from the smallest error to the greatest, with relative L2; "
            f"true and {verb} in the same colours, and their difference"
        )
        name = shown.quantity.name
        made[f"images_{name}"] = Section(
            "images", f"True and {verb}: {name}", note, sheet.height, partial(images.draw, sheet)
        )
    made |= _agreement("scalars", f"True against {verb} scalars", evaluation, evaluation.scalars, verb)
    if evaluation.scalars:
        errors = agreement.Errors.of(evaluation.scalars, evaluation.quantities)
        note = f"{verb} − true; dashed: no error" + _subset(evaluation)
        made["errors"] = Section(
            "errors", "Errors of scalars", note, errors.height, partial(agreement.draw_errors, errors)
        )
    made |= _agreement("inputs", "Inputs inferred from outputs", evaluation, evaluation.inferred, "inferred")
    made |= _training(evaluation, history)
    return made


def _agreement(
    key: str, title: str, evaluation: Evaluation, pairs: agreement.Pairs, verb: str
) -> dict[str, Section]:
    if not pairs:
        return {}
    chart = agreement.Agreement.of(pairs, evaluation.quantities, evaluation.facts[key])
    note = f"horizontally true, vertically {verb}; on the line is right" + _subset(evaluation)
    return {key: Section(key, title, note, chart.height, partial(agreement.draw, chart))}


def _subset(evaluation: Evaluation) -> str:
    num = evaluation.facts["num_samples"]
    return (
        f"; {num:,} samples"
        if num <= MAX_POINTS
        else f"; an even subset of {MAX_POINTS:,} of {num:,} samples"
    )


def _training(evaluation: Evaluation, history: History) -> dict[str, Section]:
    made = {}
    best = (int(evaluation.facts["trainer"]), int(evaluation.facts["step"]))
    chart = curves.Curves.of(history, evaluation.facts["metric"], best)
    if chart.panels:
        note = "by step; the dot is the model that is evaluated here"
        made["curves"] = Section("curves", "Learning curves", note, chart.height, partial(curves.draw, chart))
    if history.rounds:
        lines = lineage.Lineage.of(history, best)
        made["tournament"] = Section(
            "tournament", "Tournament", lines.note, lines.height, partial(lineage.draw, lines)
        )
    return made
