"""The data sets of a study: their numbers, what they lack, their fields, and pictures."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from merlin.base.page.document import Part
from merlin.errors import MissingExtraError, ShardError, UsageError, command_line
from merlin.report.facts import ReportFacts
from merlin.report.room import Room
from merlin.shards.describe import describe_data_set
from merlin.shards.ensemble import Ensemble, open_shards
from merlin.shards.plot import request, tables
from merlin.shards.plot.canvas import require_matplotlib
from merlin.shards.plot.page import figure, summary_of
from merlin.shards.plot.sections import make_sections
from merlin.views.step_lines import DataSetLine

NUM_SAMPLES = 6  # in a contact sheet
_MOST_DATA_SETS = 12


def data_sets(
    facts: ReportFacts, room: Room, on_step: Callable[[str], None], *, pictures: bool
) -> list[Part]:
    """A part for each finished data set; the first ones get the room for pictures."""
    parts: list[Part] = []
    for found in facts.page.data_sets[:_MOST_DATA_SETS]:
        on_step(f"data set {found.aggregate}")
        parts.append(
            (f"data-{len(parts)}", f"Data set {found.aggregate}", _data_set(found, room, on_step, pictures))
        )
    return parts


def _data_set(found: DataSetLine, room: Room, on_step: Callable[[str], None], pictures: bool) -> str:
    try:
        with open_shards(found.path) as ensemble:
            return _described(ensemble, room, on_step, pictures)
    except (ShardError, OSError) as error:
        return f'<p class="remark">The data set cannot be read: {escape(str(error))}</p>'


def _described(ensemble: Ensemble, room: Room, on_step: Callable[[str], None], pictures: bool) -> str:
    facts = describe_data_set(ensemble.manifest)
    titled = [("Samples that are left out", tables.left_out_table(facts))]
    titled += _pictures(ensemble, room, on_step) if pictures else []
    titled += [("Fields", tables.fields_table(facts)), ("Inputs", tables.inputs_table(facts))]
    shown = "".join(f"<h3>{escape(title)}</h3>\n{html}\n" for title, html in titled if html)
    command = escape(command_line("shards", "plot", facts.data.directory, "-o", "data.html"))
    return f"{summary_of(facts)}\n{shown}{room.note(f'. To see them: <code>{command}</code>')}"


def _pictures(ensemble: Ensemble, room: Room, on_step: Callable[[str], None]) -> list[tuple[str, str]]:
    try:
        require_matplotlib()
        sections = make_sections(ensemble, request(num=NUM_SAMPLES), on_step)
    except MissingExtraError as error:
        return [("Pictures", f'<p class="remark">{escape(str(error))}</p>')]
    except UsageError:
        return []  # nothing in it can be drawn
    drawn = ((section.title, figure(section)) for section in sections)
    return [(title, html) for title, html in drawn if room.takes(html, title)]
