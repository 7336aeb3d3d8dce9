"""Draws a graph of steps with box characters: layers from top to bottom, one row of boxes per layer. Pure.

A layer is the longest way from a root. An edge over several layers runs through invisible nodes in
between. Between two layers every source has a track of its own, a row in which its edges travel sideways.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from merlin.cli.graph import Node

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
_GLYPHS = {
    UP: "│", DOWN: "│", UP | DOWN: "│", LEFT: "─", RIGHT: "─", LEFT | RIGHT: "─",
    UP | RIGHT: "└", UP | LEFT: "┘", DOWN | RIGHT: "┌", DOWN | LEFT: "┐",
    UP | DOWN | RIGHT: "├", UP | DOWN | LEFT: "┤", LEFT | RIGHT | DOWN: "┬", LEFT | RIGHT | UP: "┴",
    UP | DOWN | LEFT | RIGHT: "┼",
}  # fmt: skip
_HEADS = {"same": "▼", "all": "▽", "block": "▼"}
_GAP = 3  # columns between boxes
LEGEND = "▼ starts sample by sample   ▽ waits for all of it"


@dataclass(slots=True)
class _Place:
    """A box, or (without text) a bend of an edge that passes through the layer."""

    name: str
    text: tuple[str, ...] = ()
    sources: dict[str, str] = field(default_factory=dict)
    left: int = 0

    @property
    def width(self) -> int:
        """Odd, so that layers of any number of boxes can be centred exactly."""
        return max((len(line) for line in self.text), default=-3) + 4 | 1

    @property
    def port(self) -> int:
        return self.left + self.width // 2


def draw(nodes: list[Node], *, width: int = 100) -> str:
    """The drawing, no line longer than `width`; graphs that do not fit become a list of steps and sources."""
    layers = _layers(nodes)
    for _ in range(4):
        _order(layers)
    if _place(layers) > width:
        return _listing(nodes)
    lines: list[str] = []
    for k, layer in enumerate(layers):
        if k:
            lines.extend(_wires(layers[k - 1], layer))
        lines.extend(_boxes(layer))
    return "\n".join(line.rstrip() for line in lines)


def _listing(nodes: list[Node]) -> str:
    lines = []
    for node in nodes:
        after = ", ".join(
            f"{s} ({'all' if kind == 'all' else 'sample by sample'})" for s, kind in node.sources.items()
        )
        lines.append(f"{node.name}  [{node.caption}]" + (f"\n    ◂ {after}" if after else ""))
    return "\n".join(lines)


def _layers(nodes: list[Node]) -> list[list[_Place]]:
    depth: dict[str, int] = {}
    for node in nodes:  # topological order
        depth[node.name] = max((depth[s] + 1 for s in node.sources), default=0)
    layers: list[list[_Place]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for node in nodes:
        place = _Place(node.name, (node.name, node.caption))
        for source, kind in node.sources.items():
            place.sources[_route(layers, source, node.name, depth[source], depth[node.name])] = kind
        layers[depth[node.name]].append(place)
    return layers


def _route(layers: list[list[_Place]], source: str, target: str, start: int, end: int) -> str:
    """Add the bends of an edge over the layers between its ends; returns the name that enters the target."""
    previous = source
    for k in range(start + 1, end):
        bend = _Place(f"{source}\0{target}\0{k}", (), {previous: ""})
        layers[k].append(bend)
        previous = bend.name
    return previous


def _order(layers: list[list[_Place]]) -> None:
    """Sort each layer by the mean position of its sources, which removes most crossings."""
    for above, layer in pairwise(layers):
        index = {place.name: k for k, place in enumerate(above)}
        layer.sort(key=lambda p: sum(index[s] for s in p.sources) / len(p.sources))


def _place(layers: list[list[_Place]]) -> int:
    """Give every place its column, layers centred over each other; returns the width of the drawing."""
    widths = [sum(p.width for p in layer) + _GAP * (len(layer) - 1) for layer in layers]
    total = max(widths, default=0)
    for layer, used in zip(layers, widths, strict=True):
        left = (total - used) // 2
        for place in layer:
            place.left = left
            left += place.width + _GAP
    return total


def _put(row: list[str], at: int, text: str) -> None:
    row.extend(" " * (at + len(text) - len(row)))
    row[at : at + len(text)] = text


def _boxes(layer: list[_Place]) -> list[str]:
    rows: list[list[str]] = [[] for _ in range(4)]
    for place in layer:
        if not place.text:
            for row in rows:
                _put(row, place.left, "│")
            continue
        inner = place.width - 2
        _put(rows[0], place.left, "╭" + "─" * inner + "╮")
        for row, line in zip(rows[1:3], place.text, strict=True):
            _put(row, place.left, "│" + line.center(inner) + "│")
        _put(rows[3], place.left, "╰" + "─" * inner + "╯")
    return ["".join(row) for row in rows]


def _wires(above: list[_Place], layer: list[_Place]) -> list[str]:
    """The rows between two layers: down from each source, sideways on its track, down to its targets."""
    sources = {place.name: place for place in above}
    targets: dict[str, list[_Place]] = {}
    for place in layer:
        for source in place.sources:
            targets.setdefault(source, []).append(place)
    entries = {place.name: _entry(place, sources) for place in layer}
    bent = [s for s in targets if any(entries[t.name] != sources[s].port for t in targets[s])]
    bent.sort(key=lambda s: -sources[s].port)
    cells: dict[tuple[int, int], int] = {}
    height = len(bent) + 1
    for source, ends in targets.items():
        track = bent.index(source) if source in bent else 0
        for end in ends:
            _wire(cells, sources[source].port, entries[end.name], track, height)
    width = max((x for _, x in cells), default=-1) + 1
    rows = ["".join(_GLYPHS.get(cells.get((y, x), 0), " ") for x in range(width)) for y in range(height)]
    last = list(rows[-1])
    for place in layer:
        if place.text and place.sources:
            kinds = set(place.sources.values()) - {""}
            last[entries[place.name]] = _HEADS["all"] if kinds == {"all"} else _HEADS["same"]
    rows[-1] = "".join(last)
    return rows


def _entry(place: _Place, sources: dict[str, _Place]) -> int:
    """The column where edges enter `place`; beside its middle if a foreign box stands exactly above."""
    foreign = {s.port for s in sources.values()} - {sources[s].port for s in place.sources}
    if place.text and place.sources and place.port in foreign and place.width >= 8:
        return place.port - 2
    return place.port


def _wire(cells: dict[tuple[int, int], int], start: int, end: int, track: int, height: int) -> None:
    """Add one edge to `cells`, each the union of the directions that leave it."""

    def add(y: int, x: int, bits: int) -> None:
        cells[y, x] = cells.get((y, x), 0) | bits

    if start == end:
        for y in range(height):
            add(y, start, UP | DOWN)
        return
    for y in range(track):
        add(y, start, UP | DOWN)
    low, high = min(start, end), max(start, end)
    add(track, start, UP | (RIGHT if end > start else LEFT))
    for x in range(low + 1, high):
        add(track, x, LEFT | RIGHT)
    add(track, end, DOWN | (LEFT if end > start else RIGHT))
    for y in range(track + 1, height):
        add(y, end, UP | DOWN)
