"""From plain data to the model, and from the model's complaints to diagnostics with a place."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

from pydantic import AliasChoices, BaseModel, ValidationError

from merlin.base.document.field_types import Block
from merlin.base.document.findings import NOWHERE, Findings, Place, allowed, did_you_mean
from merlin.base.document.scalars import Problem, shown
from merlin.base.document.tree import MISSING, Entry, Path

M = TypeVar("M", bound=Block)


def validate_as(root: type[M], data: dict[str, Any], tree: Entry, findings: Findings) -> M | None:
    """The typed document; None (with findings) where the data does not fit."""
    try:
        return root.model_validate(data)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            _report(item, tree, findings, root)
        return None


def describe_path(path: Path, tree: Entry) -> str:
    """`step 'runs': run.depends` or `merlin.samples.file`."""
    if len(path) >= 2 and path[0] == "study" and isinstance(path[1], int):
        name = tree.get("study", path[1], "name").text
        head = f"step {name!r}" if name else f"step {path[1] + 1}"
        return f"{head}: {_dotted(path[2:])}" if path[2:] else head
    return _dotted(path)


def _dotted(path: Path) -> str:
    out = ""
    for key in path:
        out += f"[{key}]" if isinstance(key, int) else f".{key}" if out else key
    return out


def known_keys(path: Path, root: type[BaseModel]) -> dict[str, str]:
    """The keys allowed in the block at a path, with their descriptions."""
    model: type[BaseModel] | None = root
    inside_container = False
    for key in path:
        if inside_container:
            inside_container = False
            continue
        if model is None:
            return {}
        annotation = _fields(model).get(str(key))
        model, inside_container = _block_of(annotation)
    if model is None or inside_container:
        return {}
    return {key: _description(model, key) for key in _fields(model)}


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        choices = info.validation_alias
        keys = (
            [str(c) for c in choices.choices] if isinstance(choices, AliasChoices) else [info.alias or name]
        )
        out.update(dict.fromkeys(keys, info.annotation))
    return out


def _description(model: type[BaseModel], key: str) -> str:
    for name, info in model.model_fields.items():
        if key in (info.alias, name):
            return info.description or ""
    return ""


def _block_of(annotation: Any) -> tuple[type[BaseModel] | None, bool]:
    """The block type inside an annotation, and whether it sits in a list or mapping of such blocks."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    container = get_origin(annotation) in (dict, tuple)
    for inner in get_args(annotation):
        model, deeper = _block_of(inner)
        if model is not None:
            return model, container or deeper
    return None, False


def _report(item: Any, tree: Entry, findings: Findings, root: type[Block]) -> None:
    path: Path = tuple(key for key in item["loc"] if key != "[key]")
    kind: str = item["type"]
    entry = tree.get(*path)
    if kind == "extra_forbidden":
        _report_unknown_key(path, entry, tree, findings, root)
        return
    if kind == "missing":
        _report_missing(path, tree, findings, root)
        return
    near = tree.nearest(path)
    message, hint = _message(item)
    findings.error(
        _value_place(near),
        f"{describe_path(path, tree)}: {message}",
        text=near.text,
        hint=hint,
        code="type" if kind.endswith("_type") else "value",
    )


def _message(item: Any) -> tuple[str, str]:
    kind: str = item["type"]
    context = item.get("ctx", {})
    if kind == "value_error":
        problem = context["error"]
        return str(problem), problem.hint if isinstance(problem, Problem) else ""
    if kind in ("model_type", "model_attributes_type", "dict_type", "mapping_type"):
        return "must be a mapping (lines of key: value)", f"it is {shown(item['input'])}" if item[
            "input"
        ] else ""
    if kind in ("tuple_type", "list_type"):
        return "must be a list", "write [a, b], or one line with '- ' for each item"
    if kind == "literal_error":
        choices = str(context["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        choices = [choice for choice in choices if choice]
        return f"{shown(item['input'])} is not allowed", allowed(str(item["input"]), choices, "allowed")
    return str(item["msg"]), ""


def _report_unknown_key(path: Path, entry: Entry, tree: Entry, findings: Findings, root: type[Block]) -> None:
    key, block = str(path[-1]), path[:-1]
    known = known_keys(block, root)
    hint = did_you_mean(key, known)
    where = describe_path(block, tree) or root.document_name
    findings.error(
        entry.key_place if entry is not MISSING else NOWHERE,
        f"unknown key {key!r} in {where}",
        text=key,
        hint=hint or root.home_of_key(key, block) or f"allowed here: {', '.join(sorted(known))}",
        code="unknown-key",
    )


def _report_missing(path: Path, tree: Entry, findings: Findings, root: type[Block]) -> None:
    key, block = str(path[-1]), path[:-1]
    where = describe_path(block, tree) or root.document_name
    entry = tree.get(*path)
    if entry is not MISSING:
        findings.error(entry.key_place, f"{key} in {where} is empty", text=key, code="missing")
        return
    near = tree.nearest(block)
    description = known_keys(block, root).get(key, "")
    findings.error(
        near.key_place if near.key_place != NOWHERE else near.place,
        f"{where} has no {key}",
        hint=f"{key}: {description}" if description else "",
        code="missing",
    )


def _value_place(entry: Entry) -> Place:
    return entry.place if entry.place != NOWHERE else entry.key_place
