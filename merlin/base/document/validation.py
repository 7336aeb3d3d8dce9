"""From plain data to the model, and from the model's complaints to diagnostics with a place."""

from __future__ import annotations

from typing import Any, TypeVar, get_args, get_origin

from msgspec import Struct
from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo

from merlin.base.document.field_types import Block
from merlin.base.document.findings import NOWHERE, Findings, allowed, did_you_mean
from merlin.base.document.scalars import Problem, shown
from merlin.base.document.tree import MISSING, Entry, Path

M = TypeVar("M", bound=Block)


def validate_as(
    root: type[M],
    data: dict[str, Any],
    tree: Entry,
    findings: Findings,
    *,
    within: Path = (),
    context: Any = None,
) -> M | None:
    """The typed document; None (with findings) where the data does not fit.

    `data` is the block at the path `within` of the document whose tree is `tree`. Validators get `context`.
    """
    try:
        return root.model_validate(data, context=context)
    except ValidationError as error:
        reporter = _Reporter(root, tree, within, findings)
        for item in error.errors(include_url=False):
            reporter.report(item)
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
        elif model is None:
            return {}
        else:
            info = _fields(model).get(str(key))
            model, inside_container = _block_of(info.annotation if info else None)
    if model is None or inside_container:
        return {}
    return {key: info.description or "" for key, info in _fields(model).items()}


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields by every key that they may have in a file."""
    out: dict[str, FieldInfo] = {}
    for name, info in model.model_fields.items():
        alias = info.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [info.alias or name]
        out.update(dict.fromkeys(map(str, choices), info))
    return out


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


class _Reporter(Struct, frozen=True):
    """Turns pydantic's errors into findings."""

    root: type[Block]
    tree: Entry
    within: Path  # what is before every path
    findings: Findings

    def report(self, item: Any) -> None:
        path: Path = tuple(key for key in item["loc"] if key != "[key]")
        kind: str = item["type"]
        if kind == "extra_forbidden":
            self._report_unknown_key(path)
        elif kind == "missing":
            self._report_missing(path)
        else:
            path = (*self.within, *path)
            near = self.tree.nearest(path)
            message, hint, code = _explained(item)
            self.findings.error(
                near.place if near.place != NOWHERE else near.key_place,
                f"{describe_path(path, self.tree)}: {message}",
                text=near.text,
                hint=hint,
                code=code,
            )

    def _where(self, block: Path) -> str:
        return describe_path((*self.within, *block), self.tree) or self.root.document_name

    def _report_unknown_key(self, path: Path) -> None:
        key, block = str(path[-1]), path[:-1]
        known = known_keys(block, self.root)
        home = did_you_mean(key, known) or self.root.home_of_key(key, block)
        self.findings.error(
            self.tree.get(*self.within, *path).key_place,
            f"unknown key {key!r} in {self._where(block)}",
            text=key,
            hint=home or f"allowed here: {', '.join(sorted(known))}",
            code="unknown-key",
        )

    def _report_missing(self, path: Path) -> None:
        key, block = str(path[-1]), path[:-1]
        entry = self.tree.get(*self.within, *path)
        if entry is not MISSING:
            message = f"{key} in {self._where(block)} is empty"
            self.findings.error(entry.key_place, message, text=key, code="missing")
            return
        near = self.tree.nearest((*self.within, *block))
        description = known_keys(block, self.root).get(key, "")
        self.findings.error(
            near.key_place if near.key_place != NOWHERE else near.place,
            f"{self._where(block)} has no {key}",
            hint=f"{key}: {description}" if description else "",
            code="missing",
        )


def _explained(item: Any) -> tuple[str, str, str]:
    """Message, hint and code for an error of pydantic's."""
    kind, value = item["type"], item["input"]
    code = "type" if kind.endswith("_type") else "value"
    if kind == "value_error":
        problem = item["ctx"]["error"]
        if isinstance(problem, Problem):
            return str(problem), problem.hint, problem.code
        return str(problem), "", code
    if kind in ("model_type", "model_attributes_type", "dict_type", "mapping_type"):
        return "must be a mapping (lines of key: value)", f"it is {shown(value)}" if value else "", code
    if kind in ("tuple_type", "list_type"):
        return "must be a list", "write [a, b], or one line with '- ' for each item", code
    if kind == "literal_error":
        choices = str(item["ctx"]["expected"]).replace("'", "").replace(" or ", ", ").split(", ")
        hint = allowed(str(value), [choice for choice in choices if choice], "allowed")
        return f"{shown(value)} is not allowed", hint, code
    return str(item["msg"]), "", code
