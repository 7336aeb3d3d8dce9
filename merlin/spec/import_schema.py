"""The schema of an import: what the columns of any files mean, as frozen, typed objects.

Everything may be left out but `fields`: what is not said is as the files have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, PlainValidator, PrivateAttr, WithJsonSchema

from merlin.base.document.field_types import Block, Count, Flag, Name, Number, Positive, Text, TextList
from merlin.base.document.findings import NOWHERE, Findings, Place, Source, allowed
from merlin.base.document.scalars import Problem, shown, to_int
from merlin.base.document.tree import MISSING, Entry, parse, to_data
from merlin.base.document.validation import validate_as
from merlin.base.kinds import DTYPES, ROLES
from merlin.errors import SpecError
from merlin.spec.data_set_blocks import Codec, CodecOrDefault, FieldKind


def _as_shape(value: Any) -> tuple[int | None, ...]:
    """Sizes of a sample's axes; "*" or null as the first one: any number."""
    if not isinstance(value, list | tuple):
        raise Problem(
            f"{shown(value)} is no shape", 'write the sizes of the axes, e.g. [64, 64, 4] or ["*", 3]'
        )
    sizes = tuple(None if item in ("*", None) else to_int(item, 1) for item in value)
    if None in sizes[1:]:
        raise Problem("only the first axis may be of any length", 'e.g. ["*", 3]')
    return sizes


def _as_columns(value: Any) -> Any:
    """`[x, y]`, `{x: column}` and `{x: {key: column}}` mean the same kind of thing."""
    if isinstance(value, list | tuple):
        return {str(name): {} for name in value}
    if isinstance(value, Mapping):
        return {name: _as_column(item) for name, item in value.items()}
    return value


def _as_column(value: Any) -> Any:
    if value is None:
        return {}
    return {"key": value} if isinstance(value, str) else value


def _or_empty(value: Any) -> Any:
    """`image:` alone is a field with nothing said about it."""
    return {name: item or {} for name, item in value.items()} if isinstance(value, Mapping) else value


Shape = Annotated[
    tuple[int | None, ...],
    PlainValidator(_as_shape),
    WithJsonSchema({"type": "array", "items": {"type": ["integer", "string", "null"]}}),
]


class ImportColumn(Block):
    """Where an input, a parameter or the sample ids come from."""

    key: Text | None = Field(
        default=None,
        validation_alias=AliasChoices("key", "path", "column"),
        description="Column of CSV or Parquet, member of .npz, data set of HDF5; default: its name.",
    )
    file: Text | None = Field(default=None, description="Glob for the names of the files that have it.")


class ImportField(ImportColumn):
    """One field of the data set."""

    kind: FieldKind | None = Field(
        default=None, description="What one sample of it is; default: by its shape."
    )
    dtype: Text = Field(default="", description="NumPy type; default: as in the file.")
    shape: Shape | None = Field(default=None, description='Of one sample; "*" first: any number of items.')
    offsets: Text | None = Field(
        default=None, description="Ragged: where each sample's items begin; n + 1 numbers."
    )
    finite: Flag = Field(
        default=True, description="NaN or infinity is a bad value; default: as the file says, else true."
    )
    units: Text = Field(default="", description="Units, kept as an attribute.")
    description: Text = Field(default="", description="Kept as an attribute.")
    compression: CodecOrDefault = Field(default="", description="Default: the schema's.")
    axes: TextList = Field(default=(), description="Names of the sample's axes.")
    layout: Text = Field(default="", description="Of an image or a volume: hwc, chw, dhwc, …")
    channels: TextList = Field(default=(), description="Names of the channels.")
    members: dict[str, ImportField] = Field(
        default_factory=dict, description=f"Of a graph: {', '.join(ROLES)}."
    )


Columns = Annotated[dict[str, ImportColumn], BeforeValidator(_as_columns)]
Fields = Annotated[dict[str, ImportField], BeforeValidator(_or_empty)]


class ImportSchema(Block):
    """A data set made from files."""

    document_name: ClassVar[str] = "the schema"

    name: Name = Field(
        default="imported", description="Name of the study that the data set will say it is of."
    )
    description: Text = Field(default="", description="Kept in the manifest.")
    inputs: Columns = Field(default_factory=dict, description="What went into a sample: numbers or text.")
    parameters: Columns = Field(
        default_factory=dict, description="As inputs; what whole runs have in common."
    )
    fields: Fields = Field(description="What came out of a sample, by name.")
    sample_id: Annotated[ImportColumn, BeforeValidator(_as_column)] | None = Field(
        default=None, description="Whole numbers that ascend; gaps are missing samples. Default: 0, 1, 2, …"
    )
    row: Annotated[ImportColumn, BeforeValidator(_as_column)] | None = Field(
        default=None,
        description="Whole numbers that ascend, where ids begin again: the sample's row. Default: by sample_id.",
    )
    samples: Literal["rows", "groups"] = Field(
        default="rows", description="HDF5: samples are rows of data sets, or each is a group of its own."
    )
    success: Text | None = Field(
        default=None, description="With groups: data set that is 0 for a failed sample, which is left out."
    )
    bad_values: Literal["refuse", "drop"] = Field(
        default="refuse", description="A value that does not fit ends the import, or its sample is left out."
    )
    samples_per_shard: Positive = Field(default=1000, description="Rows of one shard file.")
    compression: Codec = Field(default="none", description="Of all fields.")
    splits: dict[str, Number] = Field(
        default_factory=lambda: {"train": 0.8, "validation": 0.1, "test": 0.1},
        description="Fractions of the samples.",
    )
    seed: Count = Field(default=0, description="Seed of the split.")

    _tree: Entry = PrivateAttr(default=MISSING)  # what was written, for the places of mistakes
    _file: str = PrivateAttr(default="schema")

    @property
    def file(self) -> str:
        return self._file

    def written(self, *path: str) -> Entry:
        """What the text says at a path, and where."""
        return self._tree.get(*path)


def read_import_schema(path: Path) -> ImportSchema:
    """Read a schema. Raises SpecError with every finding, each with its line and column."""
    findings = Findings(str(path))
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        findings.error(NOWHERE, f"cannot read the schema: {error.strerror}", code="unreadable")
        raise SpecError(findings.sorted()) from error
    except UnicodeDecodeError as error:
        findings.error((1, 1), "the schema is not UTF-8 text", code="encoding")
        raise SpecError(findings.sorted()) from error
    return parse_import_schema(text, findings)


def parse_import_schema(text: str, findings: Findings) -> ImportSchema:
    """The schema in a YAML text. Raises SpecError with every finding."""
    tree = parse(
        Source(findings.file, text), findings, what="schema", blocks="inputs, fields, …", needs="fields"
    )
    schema = None
    if tree is not None:
        schema = validate_as(ImportSchema, to_data(tree), tree, findings)
        _check(tree, findings)
    if schema is None or findings.failed:
        raise SpecError(findings.sorted())
    schema._tree, schema._file = tree or MISSING, findings.file
    return schema


def _check(tree: Entry, findings: Findings) -> None:
    """What needs more than one value."""
    fields = tree.get("fields")
    if isinstance(fields.content, dict) and not fields.content:
        findings.error(fields.key_place, "the schema has no fields", code="empty")
    for name, entry in fields.mapping.items():
        _check_field(name, entry, findings)
    for group in ("inputs", "parameters"):
        entry = tree.get(group)
        names = entry.mapping or {item.text: item for item in entry.items}
        for name, item in names.items():
            _check_name(name, item, f"{group}.", findings)
    total = [item for item in tree.get("splits").mapping.values() if item.text]
    try:
        fraction = sum(float(item.text) for item in total)
    except ValueError:
        return
    if fraction > 1 + 1e-9:
        findings.error(
            tree.get("splits").place, f"the fractions of splits sum to {fraction:g}", code="splits",
            hint="they may sum to 1 at most",
        )  # fmt: skip


def _check_name(name: str, entry: Entry, prefix: str, findings: Findings) -> None:
    if "/" in name or name in (".", "..", ""):
        findings.error(_place(entry), f"{prefix}{name}: not a name for a column", text=name, code="bad-name")


def _check_field(name: str, entry: Entry, findings: Findings) -> None:
    _check_name(name, entry, "fields.", findings)
    dtype = entry.get("dtype")
    if dtype.text and dtype.text not in DTYPES:
        hint = allowed(dtype.text, DTYPES, "types")
        findings.error(
            dtype.place, f"fields.{name}: {dtype.text!r} is no type of a field", text=dtype.text, hint=hint,
            code="dtype",
        )  # fmt: skip
    members = entry.get("members")
    is_graph = entry.get("kind").text == "graph"
    if is_graph != bool(members.mapping):
        what = "a graph needs members" if is_graph else "only a graph has members"
        findings.error(
            _place(entry), f"fields.{name}: {what}", hint=f"members: {', '.join(ROLES)}", code="graph"
        )
    for role, member in members.mapping.items():
        if role not in ROLES:
            hint = allowed(role, ROLES, "members")
            findings.error(
                member.key_place, f"fields.{name}: {role!r} is no part of a graph", hint=hint, code="graph"
            )
        _check_field(role, member, findings)
    _check_layout(name, entry, findings)


def _check_layout(name: str, entry: Entry, findings: Findings) -> None:
    layout = entry.get("layout")
    if not layout.text:
        return
    letters = set(layout.text)
    if len(letters) != len(layout.text) or not {"h", "w"} <= letters <= set("hwdc"):
        hint = "h and w, d for depth, c for channels, each once: hwc, chw, dhwc, …"
        findings.error(layout.place, f"fields.{name}: {layout.text!r} is no layout", hint=hint, code="layout")


def _place(entry: Entry) -> Place:
    return entry.key_place if entry.key_place != NOWHERE else entry.place
