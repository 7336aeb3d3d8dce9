"""The schema of an import: what the columns of any files mean, as frozen, typed objects.

Only `fields` is required; everything else that is left out is taken from the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AliasChoices, BeforeValidator, Field, PrivateAttr

from merlin.base.document.field_types import (
    Block,
    Count,
    Flag,
    Name,
    Number,
    Positive,
    Shape,
    Text,
    TextList,
    optional,
)
from merlin.base.document.findings import NOWHERE, Findings, Place, SourceText, allowed
from merlin.base.document.tree import MISSING, Entry, parse, to_data
from merlin.base.document.validation import validate_as
from merlin.base.kinds import DTYPES, ROLES
from merlin.errors import SpecError
from merlin.spec.checks.splits import check_splits
from merlin.spec.data_set_blocks import Codec, CodecOrDefault, FieldKind


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


class ImportColumn(Block):
    """Where an input, a parameter or the sample ids come from."""

    key: Text | None = optional(
        "Column of CSV or Parquet, member of .npz, data set of HDF5; default: its name.",
        validation_alias=AliasChoices("key", "path", "column"),
    )
    file: Text | None = optional("Glob for the names of the files that have it.")


class ImportField(ImportColumn):
    """One field of the data set."""

    kind: FieldKind | None = optional("What one sample of it is; default: by its shape.")
    dtype: Text = optional("NumPy type; default: as in the file.", "")
    shape: Shape | None = optional('Of one sample; "*" first: any number of items.')
    offsets: Text | None = optional("Ragged: where each sample's items begin; n + 1 numbers.")
    finite: Flag = optional("NaN or infinity is a bad value; default: as the file says, else true.", True)
    units: Text = optional("Units, kept as an attribute.", "")
    description: Text = optional("Kept as an attribute.", "")
    compression: CodecOrDefault = optional("Default: the schema's.", "")
    axes: TextList = optional("Names of the sample's axes.", ())
    layout: Text = optional("Of an image or a volume: hwc, chw, dhwc, …", "")
    channels: TextList = optional("Names of the channels.", ())
    members: dict[str, ImportField] = Field(
        default_factory=dict, description=f"Of a graph: {', '.join(ROLES)}."
    )


Columns = Annotated[dict[str, ImportColumn], BeforeValidator(_as_columns)]
Fields = Annotated[dict[str, ImportField], BeforeValidator(_or_empty)]
OneColumn = Annotated[ImportColumn, BeforeValidator(_as_column)]


class ImportSchema(Block):
    """A data set made from files."""

    document_name: ClassVar[str] = "the schema"

    name: Name = optional("Name of the study that the data set will say it is of.", "imported")
    description: Text = optional("Kept in the manifest.", "")
    inputs: Columns = Field(default_factory=dict, description="What went into a sample: numbers or text.")
    parameters: Columns = Field(
        default_factory=dict, description="As inputs; what whole runs have in common."
    )
    fields: Fields = Field(description="What came out of a sample, by name.")
    sample_id: OneColumn | None = optional(
        "Whole numbers that ascend; gaps are missing samples. Default: 0, 1, 2, …"
    )
    row: OneColumn | None = optional(
        "Whole numbers that ascend, where ids begin again: the sample's row. Default: by sample_id."
    )
    samples: Literal["rows", "groups"] = optional(
        "HDF5: samples are rows of data sets, or each is a group of its own.", "rows"
    )
    success: Text | None = optional("With groups: data set that is 0 for a failed sample, which is left out.")
    bad_values: Literal["refuse", "drop"] = optional(
        "A value that does not fit ends the import, or its sample is left out.", "refuse"
    )
    samples_per_shard: Positive = optional("Rows of one shard file.", 1000)
    compression: Codec = optional("Of all fields.", "none")
    splits: dict[str, Number] = Field(
        default_factory=lambda: {"train": 0.8, "validation": 0.1, "test": 0.1},
        description="Fractions of the samples.",
    )
    seed: Count = optional("Seed of the split.", 0)

    _tree: Entry = PrivateAttr(default=MISSING)  # the text as a tree, for the places of mistakes
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
        SourceText(findings.file, text), findings, what="schema", blocks="inputs, fields, …", needs="fields"
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
    """Check what concerns more than one value."""
    fields = tree.get("fields")
    if isinstance(fields.content, dict) and not fields.content:
        findings.error(fields.key_place, "the schema has no fields", code="empty")
    for name, entry in fields.mapping.items():
        _check_field(name, entry, findings)
    for group in ("inputs", "parameters"):
        entry = tree.get(group)
        for name, item in (entry.mapping or {item.text: item for item in entry.items}).items():
            _check_name(name, item, f"{group}.", findings)
    check_splits(tree.get("splits"), findings)


def _check_name(name: str, entry: Entry, prefix: str, findings: Findings) -> None:
    if "/" in name or name in (".", "..", ""):
        findings.error(_place(entry), f"{prefix}{name}: not a name for a column", text=name, code="bad-name")


def _check_field(name: str, entry: Entry, findings: Findings) -> None:
    _check_name(name, entry, "fields.", findings)
    dtype, layout = entry.get("dtype"), entry.get("layout")
    if dtype.text and dtype.text not in DTYPES:
        message = f"fields.{name}: {dtype.text!r} is no type of a field"
        hint = allowed(dtype.text, DTYPES, "types")
        findings.error(dtype.place, message, text=dtype.text, hint=hint, code="dtype")
    members = entry.get("members").mapping
    if (entry.get("kind").text == "graph") != bool(members):
        message = f"fields.{name}: {'only a graph has members' if members else 'a graph needs members'}"
        findings.error(_place(entry), message, hint=f"members: {', '.join(ROLES)}", code="graph")
    for role, member in members.items():
        if role not in ROLES:
            message = f"fields.{name}: {role!r} is no part of a graph"
            hint = allowed(role, ROLES, "members")
            findings.error(member.key_place, message, hint=hint, code="graph")
        _check_field(role, member, findings)
    letters = set(layout.text)
    if letters and (len(letters) != len(layout.text) or not {"h", "w"} <= letters <= set("hwdc")):
        message = f"fields.{name}: {layout.text!r} is no layout"
        hint = "h and w, d for depth, c for channels, each once: hwc, chw, dhwc, …"
        findings.error(layout.place, message, hint=hint, code="layout")


def _place(entry: Entry) -> Place:
    return entry.key_place if entry.key_place != NOWHERE else entry.place
