"""Writes an evaluation: its numbers, its charts and its page."""

from __future__ import annotations

from pathlib import Path

from merlin.base.files import replacing, write_text
from merlin.shards.plot.canvas import require_matplotlib
from merlin.shards.plot.figure import make_figure, picture
from merlin.train.results.evaluate import Evaluation
from merlin.train.results.history import read_history
from merlin.train.results.report.page import make_page
from merlin.train.results.report.sections import make_sections

PLOTS = "plots"
REPORT = "report.html"


def write_report(evaluation: Evaluation, out: Path | None = None) -> tuple[Path, list[Path]]:
    """Write `evaluation.json`, the charts as `plots/*.png` and the page; returns the page and the charts.

    The page is `report.html` in the run directory unless `out` says otherwise. Raises MissingExtraError without
    matplotlib.
    """
    require_matplotlib()
    evaluation.save()
    history = read_history(evaluation.run)
    sections = make_sections(evaluation, history)
    charts = []
    for name, section in sections.items():
        charts.append(evaluation.run.path / PLOTS / f"{name}.png")
        with replacing(charts[-1]) as temporary:
            temporary.write_bytes(picture(make_figure([section], "", ""), "png"))
    page = evaluation.run.path / REPORT if out is None else out
    write_text(page, make_page(evaluation, history, sections))
    return page, charts
