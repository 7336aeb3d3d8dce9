"""The fields of a data set as the plan has them: graphs taken apart, defaults filled in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

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
        # without any source it is the function's output of the same name
        output=_text(block.output, fill) or (None if block.file or block.expression else name),
        file=_text(block.file, fill),
        key=_text(block.key, fill),
        regex=block.regex,
        expression=_text(block.expression, fill) or "",
        finite=block.finite,
        units=block.units,
        description=block.description,
        compression=block.compression,
        shuffle=block.shuffle,
        level=block.level,
        keep_bits=block.keep_bits,
        axes=tuple(block.axes) or axes_of(layout, ragged=ragged),
        layout=layout,
        channels=tuple(block.channels),
    )


def _member(graph: str, block: FieldBlock, role: str, member: Values, fill: Fill) -> PlannedField:
    """What the member does not say, its role says, or the graph for all of them."""
    given, usual = member.model_fields_set, ROLES[role]
    ragged, shape = _split(member.shape if "shape" in given else usual.shape)
    file = _text(member.file or (None if member.output or member.expression else block.file), fill)
    key = _text(member.key, fill)
    return PlannedField(
        name=f"{graph}.{role}",
        kind="ragged" if ragged else "series" if shape else "scalar",
        dtype=member.dtype if "dtype" in given else usual.dtype or block.dtype,
        shape=shape,
        ragged=ragged,
        output=_text(member.output, fill) or (None if file or member.expression else f"{graph}.{role}"),
        file=file,
        key=role if file and key is None and member.regex is None and not member.file else key,
        regex=member.regex,
        expression=_text(member.expression, fill) or "",
        finite=member.finite if "finite" in given else block.finite,
        units=member.units,
        description=member.description or block.description,
        compression=member.compression or block.compression,
        shuffle=member.shuffle or block.shuffle,
        level=block.level if member.level is None else member.level,
        keep_bits=member.keep_bits,
        axes=tuple(member.axes),
        graph=graph,
        role=role,
    )


def _split(shape: tuple[int | None, ...]) -> tuple[bool, tuple[int, ...]]:
    """Return whether the first axis has any length, and the sizes of the others."""
    return shape[:1] == (None,), tuple(size for size in shape if size is not None)


def _text(text: str | None, fill: Fill) -> str | None:
    return None if text is None else fill(text)
