"""Check that the members of a graph fit together, sample by sample."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from merlin.base.field import Field
from merlin.base.kinds import ROLES
from merlin.shards.format.segments import Array, Ragged
from merlin.shards.writing.piece import Piece


def refuse_bad_graphs(piece: Piece, fields: Sequence[Field]) -> None:
    """Refuse samples whose members differ in their number of nodes or edges, or with an edge to no node."""
    graphs: dict[str, dict[str, Field]] = defaultdict(dict)
    for field in fields:
        if field.graph:
            graphs[field.graph][field.role] = field
    for members in graphs.values():
        num_nodes = _agreed(piece, members, "node")
        _agreed(piece, members, "edge")
        if num_nodes is not None and "edges" in members:
            _refuse_bad_edges(piece, members["edges"], num_nodes)


def _column(piece: Piece, field: Field) -> Ragged:
    column = piece.columns[field.name]
    assert isinstance(column, Ragged)
    return column


def _agreed(piece: Piece, members: dict[str, Field], item: str) -> Array | None:
    """(n,) the number of nodes or edges, on which the members that have a row for each agree; None without any."""
    there = [members[role.name] for role in ROLES.values() if role.item == item and role.name in members]
    if not there:
        return None
    wanted = _column(piece, there[0]).lengths
    for other in there[1:]:
        found = _column(piece, other).lengths
        for i in np.flatnonzero((found != wanted) & piece.keep).tolist():
            cause = f"{int(wanted[i])} {there[0].role}, and {int(found[i])} {other.role}"
            piece.refuse(i, f"graph '{other.graph}': {cause}")
    return wanted


def _refuse_bad_edges(piece: Piece, edges: Field, num_nodes: Array) -> None:
    column = _column(piece, edges)
    ends = column.items
    limits = np.repeat(num_nodes, column.lengths)
    bad = np.asarray(((ends < 0) | (ends >= limits[:, None])).any(axis=1))
    if not bad.any():
        return
    for i in np.flatnonzero(column.any_item(bad) & piece.keep).tolist():
        mine = column[i]
        wrong = mine[(mine < 0) | (mine >= num_nodes[i])][0]
        piece.refuse(
            i,
            f"field '{edges.name}': an edge leads to node {int(wrong)}, and there are {int(num_nodes[i])} (from 0 on)",
        )
