"""Training runs of a study: how they went, and how good the best model is."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from merlin.base.page.document import Part, cards
from merlin.base.text import duration
from merlin.errors import MissingExtraError, TrainingError, command_line
from merlin.report.facts import ReportFacts
from merlin.report.room import Room
from merlin.shards.plot.canvas import Section, require_matplotlib
from merlin.shards.plot.page import figure
from merlin.train.results.evaluation_file import read_evaluation
from merlin.train.results.history import History, read_history
from merlin.train.results.report import tables
from merlin.train.results.report.brief import plots, quality_cards, quality_subtitle
from merlin.train.results.report.curves import Curves
from merlin.train.results.report.lineage import Lineage
from merlin.train.run_paths import RunPaths
from merlin.views.training_runs import RunLine

_MOST_RUNS = 8
_TYPES = {".svg": "image/svg+xml", ".png": "image/png"}
# name of a chart -> its title; those drawn from the run's own history are not taken from its files
_TITLES = {
    "scalars": "True against predicted scalars",
    "errors": "Errors of scalars",
    "inputs": "Inferred inputs",
    "calibration": "Calibration of the uncertainty",
}
_OWN = ("curves", "tournament")


def training_runs(
    facts: ReportFacts, room: Room, on_step: Callable[[str], None], *, pictures: bool
) -> list[Part]:
    """A part for each training run, the latest first: it is what the others were for."""
    parts: list[Part] = []
    for run in list(reversed(facts.page.runs))[:_MOST_RUNS]:
        on_step(f"training run {run.name}")
        parts.append((f"training-{len(parts)}", f"Trained in {run.name}", _run(run, room, pictures)))
    return parts


def _run(line: RunLine, room: Room, pictures: bool) -> str:
    run = RunPaths(Path(line.path))
    try:
        history, measured = read_history(run), read_evaluation(run)
    except TrainingError as error:
        return f'<p class="remark">{escape(str(error))}</p>'
    lines = [_head(run, history, measured)]
    if pictures:
        lines += [
            f"<h3>{escape(title)}</h3>\n{html}" for title, html in _charts(run, history, measured, room)
        ]
    if measured is not None:
        lines += _numbers(measured)
    best = None if measured is None else int(measured["trainer"])
    lines.append(f"<h3>Trainers</h3>\n{tables.trainers_table(history, best)}")
    if note := room.note(f"; they are in {escape(str(run.path))}."):
        lines.append(note)
    return "\n".join(lines)


def _head(run: RunPaths, history: History, measured: dict[str, Any] | None) -> str:
    if measured is not None:
        compared = tables.baseline_table(measured.get("baseline"))
        shown = cards(quality_cards(measured, history))
        return f'<p class="sub">{quality_subtitle(measured)}</p>\n{compared}{shown}'
    steps = max((trained.step for trained in history.trainers), default=0)
    seconds = max((trained.train_s for trained in history.trainers), default=0.0)
    numbers = [
        (f"{len(history.trainers)}", "trainer" if len(history.trainers) == 1 else "trainers"),
        (f"{steps:,}", "steps"),
        (duration(seconds), "training"),
    ]
    command = escape(command_line("evaluate", run.path))
    return f'<p class="sub">Not evaluated so far; do so with <code>{command}</code></p>\n{cards(numbers)}'


def _charts(
    run: RunPaths, history: History, measured: dict[str, Any] | None, room: Room
) -> list[tuple[str, str]]:
    """What the evaluation has drawn; learning curves and rounds, drawn anew."""
    files = {name: path for name, path in plots(run).items() if name not in _OWN}
    found = []
    for name in sorted(files, key=lambda name: (list(_TITLES).index(name) if name in _TITLES else -1, name)):
        title = _TITLES.get(name, f"True and predicted: {name.removeprefix('images_')}")
        found.append((title, _picture(files[name], f"{title}, of the model in {run.path.name}")))
    found += [(section.title, figure(section)) for section in _history_sections(history, measured)]
    return [(title, html) for title, html in found if room.takes(html, title)]


def _history_sections(history: History, measured: dict[str, Any] | None) -> list[Section]:
    try:
        require_matplotlib()
    except MissingExtraError:
        return []
    best = (-1, -1) if measured is None else (int(measured["trainer"]), int(measured["step"]))
    curves = Curves.of(history, "" if measured is None else measured["metric"], best)
    sections = [curves.section()] if curves.panels else []
    if history.rounds:
        sections.append(Lineage(history, best).section())
    return sections


def _picture(path: Path, title: str) -> str:
    """A chart from a file, as an image that can run and load nothing."""
    data = path.read_bytes()
    if path.suffix == ".svg":
        text = "," + quote(data.decode("utf-8", "replace"), safe=" /:;=()'!*,@$&+?~[]{}|^`", encoding="utf-8")
    else:
        text = ";base64," + b64encode(data).decode()
    return f'<figure><img alt="{escape(title)}" src="data:{_TYPES[path.suffix]}{escape(text)}"></figure>'


def _numbers(measured: dict[str, Any]) -> list[str]:
    known = {
        "Classes in numbers": tables.classes_tables(measured["classes"]) if measured["classes"] else "",
        "Scalars in numbers": tables.scalars_table(measured["scalars"]) if measured["scalars"] else "",
        "Images in numbers": tables.images_table(measured["images"]) if measured["images"] else "",
    }
    return [f"<h3>{title}</h3>\n{html}" for title, html in known.items() if html]
