"""Checks that the columns in the files can be what a schema says of them, as a spec's fields are checked."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from merlin.base.document.findings import NOWHERE, Findings
from merlin.base.document.tree import Entry
from merlin.errors import Diagnostic, SpecError
from merlin.plan.plan import PlannedField
from merlin.spec.checks.fields import FieldChecker
from merlin.spec.import_schema import ImportSchema


def check_fit(schema: ImportSchema, fields: Iterable[PlannedField]) -> None:
    """Check kind, axes, layout and channels of all fields against the shapes in the files.

    Raises SpecError with every finding, each with the line and column in the schema.
    """
    findings = Findings(schema.file)
    for field in fields:
        inside = (field.graph, "members", field.role) if field.graph else (field.name,)
        written = schema.written("fields", *inside)
        checked = Findings(schema.file)
        FieldChecker("", "", checked).check_form(field.name, _completed(written, field), field.role)
        is_written = not written.get("shape").is_null
        findings.items += [item if is_written else _of_files(item, field) for item in checked.items]
    if findings.failed:
        raise SpecError(findings.sorted())


def _completed(written: Entry, field: PlannedField) -> Entry:
    """The schema's entry of a field, completed by the kind, type and shape in the files."""
    place = written.key_place if written.key_place != NOWHERE else written.place
    found: dict[str, str | list[Entry]] = {
        "kind": field.kind,
        "dtype": field.dtype,
        "shape": [Entry(size, place) for size in _sizes(field)],
    }
    known = {key: Entry(content, place, place) for key, content in found.items()}
    given = {key: entry for key, entry in written.mapping.items() if not entry.is_null}
    return replace(written, content=known | given)


def _of_files(item: Diagnostic, field: PlannedField) -> Diagnostic:
    """A finding about a shape that comes from the files: its hint says what that shape is."""
    found = f"in the files a sample has the shape [{', '.join(_sizes(field))}]"
    return item.but(hint=found if item.code == "shape" or not item.hint else f"{item.hint}; {found}")


def _sizes(field: PlannedField) -> list[str]:
    return [*(["*"] if field.ragged else []), *map(str, field.shape)]
