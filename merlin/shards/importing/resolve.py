"""Which columns of which files a schema means, and what fields they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any

import numpy as np
from msgspec.structs import replace

from merlin.base.kinds import KINDS, kind_of_shape
from merlin.errors import ShardError, UsageError
from merlin.plan.plan import PlannedField
from merlin.shards.importing.fit import check_fit
from merlin.shards.importing.matrix import MAX_COLUMNS, MatrixFile
from merlin.shards.importing.source_file import Facts, SourceFile, list_some
from merlin.shards.importing.streams import FileColumn, Stream
from merlin.shards.writing import check
from merlin.spec.import_schema import ImportColumn, ImportField, ImportSchema


def make_streams(schema: ImportSchema, sources: Sequence[SourceFile]) -> list[Stream]:
    """All columns of the schema, found in the files.

    Raises:
        UsageError: the files do not have a column, or do not agree on it or on the number of samples.
        SpecError: a field is not what the schema says of it.
        ShardError: a column cannot be read, or cannot be in a data set.
    """
    streams = []
    for name, field in schema.fields.items():
        if field.members:
            for role, member in field.members.items():
                streams.append(_field_stream(f"{name}.{role}", member, sources, graph=name, role=role))
        else:
            streams.append(_field_stream(name, field, sources))
    check_fit(schema, [stream.field for stream in streams])
    for group, columns in (("inputs", schema.inputs), ("parameters", schema.parameters)):
        for name, column in columns.items():
            streams += _plain_streams(group, name, column, sources)
    _refuse_clashes(schema, streams)
    other = next((stream for stream in streams if stream.num != streams[0].num), None)
    if other is not None:
        raise UsageError(
            f"the files do not agree on the number of samples: {streams[0].num:,} in '{streams[0].path}', "
            f"{other.num:,} in '{other.path}'"
        )
    return streams


def find_parts(
    what: str, keys: Sequence[str], column: ImportColumn, sources: Sequence[SourceFile]
) -> list[FileColumn]:
    """The files that have a column under one of these keys, in their order.

    Without `file:`, these are all files of the kind of file that has it. Raises UsageError if one of them, or
    every file, does not have it.
    """
    chosen = [s for s in sources if column.file is None or _matches(s.path, column.file)]
    if not chosen:
        known = list_some(source.path.name for source in sources)
        raise UsageError(f"{what}: no file is called {column.file}; there are: {known}")
    named = column.file is not None
    having = [s for s in chosen if _key_in(s, keys, named)]
    if not having:
        raise UsageError(
            f"{what}: no file has '{keys[0]}'; {chosen[0].path} has {list_some(chosen[0].names())}. "
            "Say where it is with key:"
        )
    kinds = {source.path.suffix for source in having}
    lacking = [s for s in chosen if s not in having and (named or s.path.suffix in kinds - {".npy"})]
    if lacking:
        raise UsageError(
            f"{what}: {having[0].path} has '{keys[0]}', and {lacking[0].path} does not; "
            "name the files that do with file:"
        )
    offsets = column.offsets if isinstance(column, ImportField) else None
    found = ((source, _key_in(source, keys, named)) for source in having)
    return [FileColumn(source, key, offsets, source.facts(key, offsets)) for source, key in found]


def _key_in(source: SourceFile, keys: Sequence[str], named: bool) -> str:
    """The key under which a file has the column, or ""; a .npy that is named with `file:` has only one."""
    only = source.names()[0] if named and source.path.suffix.lower() == ".npy" else ""
    return next((key for key in keys if source.has(key)), only)


def _matches(path: PurePath, pattern: str) -> bool:
    return fnmatchcase(path.name, pattern) or fnmatchcase(str(path), pattern)


def _keys(column: ImportColumn, name: str, *groups: str) -> list[str]:
    return [column.key] if column.key else [name, *(f"{group}/{name}" for group in groups)]


def _plain_streams(
    group: str, name: str, column: ImportColumn, sources: Sequence[SourceFile]
) -> list[Stream]:
    """An input or a parameter, or those that the columns of a matrix are, as float64 or text.

    In parameters whole numbers stay whole numbers.
    """
    what = f"{group}.{name}"
    parts = find_parts(what, _keys(column, name, group), column, sources)
    first = parts[0].facts
    if any(part.facts.ragged or len(part.facts.shape) > 1 for part in parts):
        raise UsageError(
            f"{what}: expected a number or a row of numbers for each sample, found "
            f"{'any number of them' if first.ragged else f'shape {first.shape}'}; name it among the fields, "
            "of which a model may have inputs, too"
        )
    if any(part.facts.dtype.kind == "c" for part in parts):
        raise UsageError(f"{what} holds complex numbers; name it among the fields")
    if any(part.facts.shape for part in parts):
        return _matrix_streams(group, name, parts)
    return [_plain_stream(group, name, parts)]


def _plain_stream(group: str, name: str, parts: Sequence[FileColumn]) -> Stream:
    if any(part.facts.is_text for part in parts):
        return Stream(f"{group}/{name}", PlannedField(name=name, kind="text"), parts)
    is_integer = group == "parameters" and all(part.facts.dtype.kind in "iu" for part in parts)
    return Stream(
        f"{group}/{name}", PlannedField(name=name, dtype="int64" if is_integer else "float64"), parts
    )


def _matrix_streams(group: str, name: str, parts: Sequence[FileColumn]) -> list[Stream]:
    """z0, z1, … of z (n, k)."""
    facts = _agree(f"{group}.{name}", parts)
    (num,) = facts.shape
    if facts.is_text or not 0 < num <= MAX_COLUMNS:
        found = "texts" if facts.is_text else f"{num:,} numbers"
        raise UsageError(
            f"{group}.{name}: a sample has {found}, and 1 to {MAX_COLUMNS:,} numbers become columns; "
            "name it among the fields"
        )
    files = [MatrixFile(part.source, part.key, part.facts) for part in parts]
    return [
        _plain_stream(
            group, f"{name}{i}", [FileColumn(file, str(i), None, file.facts(str(i))) for file in files]
        )
        for i in range(num)
    ]


def _refuse_clashes(schema: ImportSchema, streams: Sequence[Stream]) -> None:
    """Raise UsageError if a column of a matrix has the name of another input or parameter."""
    paths = [stream.path for stream in streams if not stream.path.startswith("fields/")]
    for name, num in Counter(path.partition("/")[2] for path in paths).items():
        is_said = name in schema.inputs and name in schema.parameters
        if num > 1 + is_said:
            raise UsageError(
                f"two columns would be called '{name}': the columns of a matrix z are z0, z1, …; "
                "give one of them another name: inputs: {new_name: {key: its name in the files}}"
            )


def _field_stream(
    name: str, field: ImportField, sources: Sequence[SourceFile], graph: str = "", role: Any = ""
) -> Stream:
    path = f"fields/{graph}/{role}" if graph else f"fields/{name}"
    keys = [*_keys(field, name, "fields"), *([] if field.key else [path, f"{graph}/{role}"])]
    parts = find_parts(f"fields.{name}", keys, field, sources)
    facts = _agree(f"fields.{name}", parts)
    shape, ragged = _shape(name, field, facts)
    about = parts[0].source.about(parts[0].key)
    known = replace(facts, dtype=np.dtype(field.dtype)) if field.dtype else facts
    kind = field.kind or guess_kind(name, known, shape, ragged, about.get("kind", ""))
    says = {"axes": field.axes, "layout": field.layout, "channels": field.channels}
    axes = says if any(says.values()) else axes_written(about, kind, shape, ragged)
    made = PlannedField(
        name=name,
        kind=kind,
        dtype=field.dtype or ("float64" if facts.is_text else facts.dtype.name),
        shape=shape,
        ragged=ragged,
        finite=field.finite if "finite" in field.model_fields_set else about.get("finite", True),
        units=field.units or about.get("units", ""),
        description=field.description or about.get("description", ""),
        compression=field.compression,
        graph=graph,
        role=role,
        **axes,
    )
    if not made.is_text and facts.is_text and not field.dtype:
        raise UsageError(f"fields.{name} holds text; say kind: text, or a dtype that it can be read as")
    if not made.is_text and not facts.is_text and not check.castable(facts.dtype, made.value_dtype):
        raise UsageError(f"fields.{name}: {facts.dtype.name} in the files does not become {made.dtype}")
    return Stream(path, made, parts)


def _agree(what: str, parts: Sequence[FileColumn]) -> Facts:
    """What the files say of a column; they have to say the same, except for the width of numbers."""
    first = parts[0].facts
    for part in parts[1:]:
        if (part.facts.shape, part.facts.ragged, part.facts.is_text) != (
            first.shape,
            first.ragged,
            first.is_text,
        ):
            raise UsageError(
                f"{what}: samples have shape {first.shape} in {parts[0].source.path}, "
                f"and {part.facts.shape} in {part.source.path}"
            )
    if first.is_text:
        return first
    return replace(first, dtype=np.result_type(*(part.facts.dtype for part in parts)))


def _shape(name: str, field: ImportField, facts: Facts) -> tuple[tuple[int, ...], bool]:
    """The field's shape of a sample, or of an item, and whether it is ragged."""
    if field.shape is None:
        return facts.shape, facts.ragged
    wanted = tuple(size for size in field.shape if size is not None)
    ragged = None in field.shape
    sizes_agree = np.prod(wanted, dtype=int) == np.prod(facts.shape, dtype=int)
    if ragged != facts.ragged and ragged:
        raise UsageError(
            f"fields.{name}: expected any number of items in a sample, found shape {facts.shape}"
        )
    if not sizes_agree and not (facts.ragged and not ragged):
        raise UsageError(f"fields.{name}: expected shape {list(field.shape)}, found {list(facts.shape)}")
    return wanted, ragged


def axes_written(about: dict[str, Any], kind: str, shape: tuple[int, ...], ragged: bool) -> dict[str, Any]:
    """Layout, axes and channels that a file gives, as far as they fit what the column is."""
    found: dict[str, Any] = {}
    layout = str(about.get("layout", ""))
    if layout and len(layout) == len(shape) and KINDS[kind].has_layout(layout):
        found["layout"] = layout
        channels = tuple(about.get("channels", ()))
        if channels and "c" in layout and len(set(channels)) == shape[layout.index("c")]:
            found["channels"] = channels
    axes = tuple(about.get("axes", ()))
    if axes and len(axes) == len(shape) + ragged:
        found["axes"] = axes
    return found


def guess_kind(name: str, facts: Facts, shape: tuple[int, ...], ragged: bool, written: str) -> str:
    """The kind of a column: the one `written` in its file if it fits, else by its shape.

    Raises ShardError for too many axes.
    """
    if ragged:
        return "ragged"
    if facts.is_text:
        return "text"
    if written in KINDS and len(shape) in KINDS[written].axes:
        return written
    kind = kind_of_shape(shape)
    if kind is None:
        raise ShardError(f"fields.{name}: {len(shape)} axes are more than a field may have")
    return kind.name
