"""The fields of a data set as the plan has them: graphs taken apart, defaults filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from merlin.base.kinds import ROLES, axes_of, layout_of
from merlin.plan.plan import PlannedField

if TYPE_CHECKING:
    from merlin.spec.data_set_blocks import FieldBlock, Values

Fill = Callable[[str], str]  # fills in what is known of $(NAME)


def plan_fields(blocks: Mapping[str, FieldBlock], fill: Fill) -> tuple[PlannedField, ...]:
    """All fields in the order of the spec; a graph becomes one field for each of its members."""
    return tuple(field for name, block in blocks.items() for field in _fields(name, block, fill))


def _fields(name: str, block: FieldBlock, fill: Fill) -> Iterator[PlannedField]:
    if block.kind == "graph":
        for role, member in block.members.items():
            yield _member(name, block, role, member, fill)
        return
    ragged, shape = _split(block.shape)
    kind = "ragged" if ragged and "kind" not in block.model_fields_set else block.kind
    layout = block.layout or layout_of(kind, len(shape), block.axes[ragged:])
    yield PlannedField(
        name=name,
        kind=kind,
        dtype=block.dtype,
        shape=shape,
        ragged=ragged,
        **_source(name, block, block.file, block.key, fill),
        finite=block.finite,
        description=block.description,
        compression=block.compression,
        shuffle=block.shuffle,
        level=block.level,
        axes=tuple(block.axes) or axes_of(layout, ragged=ragged),
        layout=layout,
        channels=tuple(block.channels),
    )


def _member(graph: str, block: FieldBlock, role: str, member: Values, fill: Fill) -> PlannedField:
    """The field of a graph's member. Keys that it leaves out come from its role, or from the graph."""
    given, usual, name = member.model_fields_set, ROLES[role], f"{graph}.{role}"
    ragged, shape = _split(member.shape if "shape" in given else usual.shape)
    file, key = member.file, member.key
    if not (file or member.output or member.expression) and block.file:
        file, key = block.file, role if key is None and member.regex is None else key
    return PlannedField(
        name=name,
        kind="ragged" if ragged else "series" if shape else "scalar",
        dtype=member.dtype if "dtype" in given else usual.dtype or block.dtype,
        shape=shape,
        ragged=ragged,
        **_source(name, member, file, key, fill),
        finite=member.finite if "finite" in given else block.finite,
        description=member.description or block.description,
        compression=member.compression or block.compression,
        shuffle=member.shuffle or block.shuffle,
        level=block.level if member.level is None else member.level,
        axes=tuple(member.axes),
        graph=graph,
        role=role,
    )


def _source(name: str, values: Values, file: str | None, key: str | None, fill: Fill) -> dict[str, Any]:
    """Where the values come from; without any source they are the function's output of the same name."""
    return {
        "output": _text(values.output, fill) or (None if file or values.expression else name),
        "file": _text(file, fill),
        "key": _text(key, fill),
        "regex": values.regex,
        "expression": _text(values.expression, fill) or "",
        "units": values.units,
        "keep_bits": values.keep_bits,
    }


def _split(shape: tuple[int | None, ...]) -> tuple[bool, tuple[int, ...]]:
    """Return whether the first axis has any length, and the sizes of the others."""
    return shape[:1] == (None,), tuple(size for size in shape if size is not None)


def _text(text: str | None, fill: Fill) -> str | None:
    return None if text is None else fill(text)
