"""From an evaluation and a history to the charts that are worth drawing."""

from __future__ import annotations

from functools import partial

import numpy as np

from merlin.shards.plot import images
from merlin.shards.plot.canvas import Section
from merlin.shards.plot.images import Row, Sheet, shrink
from merlin.shards.plot.ticks import number
from merlin.train.results.evaluate import MAX_POINTS, Evaluation, ImagesShown
from merlin.train.results.history import History
from merlin.train.results.report.agreement import Panels
from merlin.train.results.report.calibration import calibration_section
from merlin.train.results.report.curves import Curves
from merlin.train.results.report.lineage import Lineage

_MAX_CHANNELS = 6
_MAX_PIXELS = 128  # of a side


def make_sections(evaluation: Evaluation, history: History) -> dict[str, Section]:
    """Charts by the name of their file, in the order of the page."""
    made: dict[str, Section] = {}
    facts, known = evaluation.facts, evaluation.quantities
    verb = "reconstructed" if facts["kind"] == "reconstruction" else "predicted"
    num = facts["num_samples"]
    of = (
        f"; {num:,} samples"
        if num <= MAX_POINTS
        else f"; an even subset of {MAX_POINTS:,} of {num:,} samples"
    )
    note = "horizontally true, vertically {}; on the line is right" + of
    for shown in evaluation.images:
        made[f"images_{shown.quantity.name}"] = _images(shown, verb)
    if evaluation.scalars:
        panels, title = Panels.of(evaluation.scalars, known), f"True against {verb} scalars"
        made["scalars"] = panels.agreement("scalars", title, note.format(verb), facts["scalars"])
        made["errors"] = panels.errors("Errors of scalars", f"{verb} − true; dashed: no error{of}")
    if evaluation.inferred:
        panels, title = Panels.of(evaluation.inferred, known), "Inputs inferred from outputs"
        made["inputs"] = panels.agreement("inputs", title, note.format("inferred"), facts["inputs"])
    if facts["uncertainty"] is not None:
        made["calibration"] = calibration_section(facts["uncertainty"])
    best = (int(facts["trainer"]), int(facts["step"]))
    curves = Curves.of(history, facts["metric"], best)
    if curves.panels:
        made["curves"] = curves.section()
    if history.rounds:
        made["tournament"] = Lineage(history, best).section()
    return made


def _images(shown: ImagesShown, verb: str) -> Section:
    """True images, predicted ones and their difference, channel by channel below each other."""
    rows: list[Row] = []
    quantity = shown.quantity
    for channel in range(min(_MAX_CHANNELS, shown.true.shape[1])):
        name = quantity.channel(channel) or quantity.name
        true, predicted = shown.true[:, channel], shown.predicted[:, channel]
        low, high = true.min(), true.max()  # colours are chosen by the true ones alone
        for words, scale, stack in (
            ("true", "values", true),
            (verb, "values", np.clip(predicted, low, high)),
            ("difference", "difference", np.clip(predicted - true, low - high, high - low)),
        ):
            small = np.stack([shrink(picture, _MAX_PIXELS) for picture in stack]).astype(np.float32)
            rows.append(Row(name, words, scale, quantity.units, small))
    errors = tuple(number(error, 2) for error in shown.errors)
    sheet = Sheet(tuple(f"#{i}" for i in shown.sample_ids), "relative L2", errors, tuple(rows))
    note = (
        f"{len(shown.sample_ids)} samples from the smallest error to the greatest, with relative L2; "
        f"true and {verb} in the same colours, and their difference"
    )
    title = f"True and {verb}: {quantity.name}"
    return Section("images", title, note, sheet.height, partial(images.draw, sheet))
