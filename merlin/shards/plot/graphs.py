"""A few graphs, drawn where their nodes are."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

import merlin.shards.plot.canvas as look
from merlin.base.kinds import NODE_ROLES
from merlin.shards.format.segments import Array
from merlin.shards.plot.canvas import MARGIN, WIDTH, Canvas
from merlin.shards.plot.colours import mark_colours
from merlin.shards.plot.ticks import drawn, number

MAX_GRAPHS = 6
MAX_EDGES = 20_000  # of one graph that are drawn
_PER_LINE = 3
_HEAD, _SIDE, _GAP = 0.3, 3.0, 0.3


class Drawing(Struct, frozen=True):
    """One sample's graph."""

    title: str
    positions: Array  # (nodes, 2)
    edges: Array  # (edges, 2)
    colours: Array | None  # (nodes,): the first node feature or target


class GraphChart(Struct, frozen=True):
    name: str
    coloured_by: str
    drawings: tuple[Drawing, ...]

    @property
    def height(self) -> float:
        return -(-len(self.drawings) // _PER_LINE) * (_HEAD + _SIDE + _GAP)


def lay_out(title: str, graph: dict[str, Array]) -> tuple[Drawing, str, str]:
    """A graph's members as a drawing, in what plane it is, and what its nodes are coloured by."""
    edges = np.asarray(graph["edges"], dtype=np.int64).reshape(-1, 2)
    members = [np.asarray(graph[role]) for role in NODE_ROLES if role in graph]
    num = len(members[0]) if members else int(edges.max(initial=-1)) + 1
    if "positions" in graph:
        positions, how = plane(drawn(np.asarray(graph["positions"], dtype=np.float64)))
    else:
        positions, how = circle(num), "nodes in a circle"
    colours, coloured_by = None, ""
    for role in ("node_targets", "nodes"):
        if role in graph and graph[role].ndim == 2 and graph[role].shape[1]:
            colours, coloured_by = drawn(graph[role][:, 0]).astype(np.float64), f"{role}[0]"
            break
    words = f"{title}: {num:,} nodes, {len(edges):,} edges"
    return Drawing(words, positions, edges, colours), how, coloured_by


def plane(positions: Array) -> tuple[Array, str]:
    """Positions (n, D) in the plane, and how they got there."""
    dimensions = positions.shape[1]
    if dimensions == 1:
        return np.column_stack([positions[:, 0], np.zeros(len(positions))]), "drawn along their only axis"
    if dimensions == 2:
        return positions, "drawn where their nodes are"
    widest = np.sort(np.argsort(np.ptp(positions, axis=0))[::-1][:2])
    names = " and ".join("xyzw"[i] if i < 4 else str(i) for i in widest)
    return positions[:, widest], f"drawn along their widest axes, {names}"


def circle(num: int) -> Array:
    angle = 2 * np.pi * np.arange(num) / max(1, num)
    return np.column_stack([np.cos(angle), np.sin(angle)])


def draw(data: GraphChart, canvas: Canvas) -> None:
    known = [d.colours for d in data.drawings if d.colours is not None and d.colours.size]
    limits = None
    if known:
        values = np.concatenate(known)
        values = values[np.isfinite(values)]
        limits = (float(values.min()), float(values.max())) if values.size else None
    step = (WIDTH - MARGIN) / _PER_LINE
    image = None
    for i, drawing in enumerate(data.drawings):
        line, place = divmod(i, _PER_LINE)
        left, top = MARGIN + place * step, line * (_HEAD + _SIDE + _GAP)
        canvas.text(left, top + 0.06, drawing.title, color=look.INK)
        axes = canvas.axes(left, top + _HEAD, step - 0.25, _SIDE)
        image = _graph(axes, drawing, limits) or image
    if image is not None and limits is not None:
        _bar(canvas, data, image, limits)


def _graph(axes: Any, drawing: Drawing, limits: tuple[float, float] | None) -> Any:
    from matplotlib.collections import LineCollection

    look.without_box(axes)
    axes.set_gid(look.TINTED)
    edges = drawing.edges[:: -(-len(drawing.edges) // MAX_EDGES) or 1]
    ends, many = list(drawing.positions[edges]), len(edges) > 1000
    lines = LineCollection(ends, colors=look.SOFT, linewidths=0.5, alpha=0.5, rasterized=many)
    axes.add_collection(lines)
    num = max(1, len(drawing.positions))
    style = {"s": float(np.clip(2500 / num, 1.5, 40)), "linewidths": 0, "zorder": 3, "rasterized": num > 500}
    out = None
    if drawing.colours is not None and limits is not None:
        colours = {"c": drawing.colours, "cmap": mark_colours(), "vmin": limits[0], "vmax": limits[1]}
        out = axes.scatter(*drawing.positions.T, **colours, **style)
    else:
        axes.scatter(*drawing.positions.T, color=look.BLUE, **style)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.05)
    axes.autoscale_view()
    return out


def _bar(canvas: Canvas, data: GraphChart, image: Any, limits: tuple[float, float]) -> None:
    left = WIDTH - MARGIN - 1.9
    axes = canvas.axes(left, canvas.height - 0.2, 1.2, 0.07)
    bar = canvas.figure.colorbar(image, cax=axes, orientation="horizontal", ticks=[])
    bar.outline.set_visible(False)
    style, middle = {"va": "center", "fontsize": look.SMALL, "color": look.SOFT}, canvas.height - 0.165
    canvas.text(left - 0.06, middle, f"{data.coloured_by}  {number(limits[0])}", ha="right", **style)
    canvas.text(left + 1.26, middle, number(limits[1]), **style)
