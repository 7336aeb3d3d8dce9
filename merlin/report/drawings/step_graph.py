"""The steps of a study and what they wait for, from left to right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from merlin.base.text import cut
from merlin.report.drawings.canvas import WIDTH, Drawing, num
from merlin.views.graph import Node

_BOX_HEIGHT, _ROW_GAP, _COLUMN_GAP = 44.0, 16.0, 56.0
_BOX_WIDTH = 190.0
_MOST_STEPS = 60
_CHARACTER = 7.4


def draw_graph(nodes: Sequence[Node]) -> str:
    """The drawing as HTML; "" for a single step, or for so many that it would show nothing."""
    if not 1 < len(nodes) <= _MOST_STEPS:
        return ""
    columns = _columns(nodes)
    num_columns, num_rows = len(columns), max(len(column) for column in columns)
    width = min(_BOX_WIDTH, (WIDTH - _COLUMN_GAP * (num_columns - 1)) / num_columns)
    if width < 60:
        return ""
    height = num_rows * (_BOX_HEIGHT + _ROW_GAP) - _ROW_GAP
    drawing = Drawing(height + 4, "the steps and what they wait for: " + _words(nodes))
    places = {
        node.step: (
            x * (width + _COLUMN_GAP),
            2
            + (height - len(column) * (_BOX_HEIGHT + _ROW_GAP) + _ROW_GAP) / 2
            + y * (_BOX_HEIGHT + _ROW_GAP),
        )
        for x, column in enumerate(columns)
        for y, node in enumerate(column)
    }
    for node in nodes:
        for source, kind in node.after.items():
            _draw_edge(drawing, places[source], places[node.step], width, kind)
    for node in nodes:
        _draw_box(drawing, node, places[node.step], width)
    return drawing.figure()


def _columns(nodes: Sequence[Node]) -> list[list[Node]]:
    """Put each step right of all that it waits for; each column keeps the order of those, so that few lines cross."""
    depth: dict[str, int] = {}
    for node in nodes:  # in topological order
        depth[node.step] = max((depth[source] + 1 for source in node.after), default=0)
    columns: list[list[Node]] = [[] for _ in range(max(depth.values()) + 1)]
    for node in nodes:
        columns[depth[node.step]].append(node)
    rows: dict[str, float] = {}
    for column in columns:
        column.sort(key=lambda node: _mean_row(node, rows))
        rows |= {node.step: y - len(column) / 2 for y, node in enumerate(column)}
    return columns


def _mean_row(node: Node, rows: Mapping[str, float]) -> float:
    return sum(rows[source] for source in node.after) / max(1, len(node.after))


def _draw_edge(
    drawing: Drawing, source: tuple[float, float], target: tuple[float, float], width: float, kind: str
) -> None:
    x1, y1 = source[0] + width, source[1] + _BOX_HEIGHT / 2
    x2, y2 = target[0] - 7, target[1] + _BOX_HEIGHT / 2
    bend = _COLUMN_GAP * 0.6
    places = " ".join(f"{num(x)} {num(y)}" for x, y in ((x1 + bend, y1), (x2 - bend, y2), (x2, y2)))
    drawing.path(f"M{num(x1)} {num(y1)}C{places}", f"edge {kind}")
    drawing.path(f"M{num(x2 + 7)} {num(y2)}l-8 -4.5v9z", "end")


def _draw_box(drawing: Drawing, node: Node, place: tuple[float, float], width: float) -> None:
    x, y = place
    room = int((width - 16) / _CHARACTER)
    drawing.rect(x, y, width, _BOX_HEIGHT, "box", round=6)
    drawing.text(x + width / 2, y + 18, cut(node.step, room), "strong", "middle")
    about = f"{node.kind}, {node.caption}"
    about = about if len(about) <= room + 2 else cut(node.caption, room + 2)
    drawing.text(x + width / 2, y + 35, about, "small", "middle")


def _words(nodes: Sequence[Node]) -> str:
    return "; ".join(
        f"{node.step} after {', '.join(node.after)}" if node.after else node.step for node in nodes
    )
