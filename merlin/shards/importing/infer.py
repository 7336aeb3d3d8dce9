"""A schema for files that say enough about themselves: names, types and shapes, and what an export wrote beside."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from merlin.base.kinds import ROLES
from merlin.base.records import parsed
from merlin.base.yaml_text import yaml_text
from merlin.errors import ShardError, UsageError
from merlin.shards.importing.hdf5 import opening
from merlin.shards.importing.resolve import axes_written, guess_kind
from merlin.shards.importing.source_file import Facts, SourceFile, plain_about
from merlin.shards.importing.sources import open_source

_GROUPS = {"inputs": "input", "parameters": "parameter", "fields": "field"}
_SUCCESS = "performance/success"


class _Found(Struct, frozen=True):
    """A column of the first file of its kind."""

    name: str  # of a member of a graph: "<graph>.<role>"
    key: str
    role: str
    facts: Facts
    about: dict[str, Any]
    file: str  # glob, if the column needs one


def infer_schema(paths: Sequence[Path]) -> str:
    """The schema, as YAML, by which files would be imported. Raises UsageError if they hold no columns."""
    grouped = [path for path in paths if is_grouped(path)]
    success = _SUCCESS if grouped and all(map(_says_success, grouped)) else None
    sources = [open_source(path, "groups" if grouped else "rows", success) for path in paths]
    try:
        found, left_out = _look(sources)
        if not any(column.role == "field" for column in found):
            raise UsageError(
                f"{paths[0]} holds no column that could be a field; write a schema, and name it with --schema"
            )
        head = _head(found, left_out, bool(grouped), success)
        return "".join(f"{line}\n" for line in head) + yaml_text(_document(found), short_mappings=True)
    finally:
        for source in sources:
            source.close()


def is_grouped(path: Path) -> bool:
    """True if each group at the root of an HDF5 file is a sample: there are many, alike, and nothing else."""
    if path.suffix.lower() not in (".h5", ".hdf5"):
        return False
    with opening(path) as file:
        names = file.names()
        if not names or any(name in _GROUPS for name in names):
            return False
        ends = (names[0], names[-1])
        if any(file.is_outside(name) or not file.is_group(name) for name in ends):
            return False
        return all(file.find(f"{name}/{_SUCCESS}") for name in ends) or (
            len(names) > 1 and set(file.names(ends[0])) == set(file.names(ends[1]))
        )


def _says_success(path: Path) -> bool:
    """True if the groups, which are samples, have Conduit's mark that says which of them failed."""
    with opening(path) as file:
        names = file.names()
        return all(file.find(f"{name}/{_SUCCESS}") for name in (min(names), max(names)))


def _look(sources: Sequence[SourceFile]) -> tuple[list[_Found], list[str]]:
    """All columns, each under a name of its own, and what is left out and why."""
    found: dict[tuple[str, str], _Found] = {}
    left_out = []
    first_of_kind: dict[str, SourceFile] = {}
    for source in sources:
        suffix = source.path.suffix
        first_of_kind.setdefault(f"{source.path.stem}{suffix}" if suffix == ".npy" else suffix, source)
    several = len({source.path.suffix for source in sources}) < len(first_of_kind)
    for source in first_of_kind.values():
        written = _written_by_export(source.path)
        for key in dict.fromkeys(source.names()):
            try:
                facts = source.facts(key)
                guess_kind(key, facts, facts.shape, facts.ragged, "")
            except ShardError as e:
                left_out.append(str(e))
                continue
            if facts.is_text and (facts.shape or facts.ragged):
                left_out.append(f"{source.path}: '{key}' holds several texts for each sample")
                continue
            about = {**written.get(key, {}), **source.about(key)}
            role, name = _role(key, about)
            if role and (role, name) not in found:
                glob = source.path.name if several and source.path.suffix == ".npy" else ""
                found[role, name] = _Found(name, key, role, facts, about, glob)
    return list(found.values()), left_out


def _written_by_export(path: Path) -> dict[str, dict[str, Any]]:
    """What the ``export.json`` beside a file, or above it, says of its columns."""
    for folder in (path.parent, path.parent.parent):
        try:
            export = parsed((folder / "export.json").read_bytes())
            if path.relative_to(folder).as_posix() in {entry["file"] for entry in export["files"]}:
                return {str(column["name"]): plain_about(column) for column in export["columns"]}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {}


def _role(key: str, about: dict[str, Any]) -> tuple[str, str]:
    """(role, name); no role for a column that belongs to no data set."""
    path = str(about.get("path", key))
    head, _, rest = path.partition("/")
    name = rest if head in _GROUPS and rest else path.rpartition("/")[2]
    if path == "sample_id" or (path == "row" and about.get("role") == "id"):
        return path, name
    if head == "provenance" or path == "row":
        return "", name
    if head in _GROUPS and rest:
        return _GROUPS[head], rest.replace("/", ".")
    return "field", name


def _head(
    found: Sequence[_Found], left_out: Sequence[str], grouped: bool, success: str | None
) -> Iterator[str]:
    yield from (f"# left out: {line}" for line in left_out)
    if grouped:
        yield "samples: groups"
        yield f"success: {success}" if success else "# success: data set that is 0 for a failed sample"
    if not any(column.role == "input" for column in found):
        yield "# inputs: [names of what went in, out of the fields below]"


def _document(found: Sequence[_Found]) -> dict[str, Any]:
    """The schema's blocks."""
    document: dict[str, Any] = {}
    for column in found:
        if column.role in ("input", "parameter"):
            entry = {"key": column.key} | ({"file": column.file} if column.file else {})
            document.setdefault(f"{column.role}s", {})[column.name] = entry
    fields = document["fields"] = {}
    for column in found:
        graph, _, role = column.name.rpartition(".")
        if column.role == "field" and role in ROLES and graph:
            members = fields.setdefault(graph, {"kind": "graph", "members": {}})["members"]
            members[role] = _field(column, is_member=True)
        elif column.role == "field":
            fields[column.name] = _field(column, is_member=False)
        elif column.role in ("sample_id", "row") and column.facts.dtype.kind in "iu":
            document[column.role] = column.key
    return document


def _field(column: _Found, *, is_member: bool) -> dict[str, Any]:
    facts, about = column.facts, column.about
    kind = guess_kind(column.name, facts, facts.shape, facts.ragged, str(about.get("kind", "")))
    entry = {
        "kind": "" if is_member else kind,
        "dtype": "" if facts.is_text else facts.dtype.name,
        "shape": [*(["*"] if facts.ragged else []), *facts.shape],
        "key": column.key if column.key != column.name else "",
        "file": column.file,
        "units": about.get("units", ""),
        "description": about.get("description", ""),
        **axes_written(about, kind, facts.shape, facts.ragged),
    }
    known = {name: list(v) if isinstance(v, tuple) else v for name, v in entry.items() if v}
    return known | ({} if about.get("finite", True) else {"finite": False})
