"""The plan as a file: versioned JSON whose size does not depend on the number of samples."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from merlin.base.files import write_text
from merlin.base.records import as_kind, indented, to_plain
from merlin.errors import WorkspaceError
from merlin.plan.plan import FORMAT, Plan, Scalar


def plan_to_json(plan: Plan) -> str:
    content = {**FORMAT.head(), **_content(plan)}
    return indented(content, ensure_ascii=False) + "\n"


def _content(plan: Plan) -> dict[str, Any]:
    """Everything in a plan. What earlier versions did not record is left out, so that their plans keep their digest."""
    content: dict[str, Any] = to_plain(plan)
    for key in ("code", "revision"):
        if not content[key]:
            del content[key]
    if plan.samples is not None and not plan.samples.room:
        del content["samples"]["room"]
    return content


def plan_from_json(text: str, where: str = "plan") -> Plan:
    """Read a plan; `where` names the file in messages.

    Raises:
        WorkspaceError: not a plan, damaged, or of a version that this code does not know.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: nested too deeply
        raise WorkspaceError(f"{where}: not JSON ({error}); the file is damaged") from error
    if not isinstance(data, dict) or data.pop("format", None) != FORMAT.name:
        raise WorkspaceError(f"{where}: not a plan (its format is not {FORMAT.name!r})")
    version = data.pop("version", None)
    if version != FORMAT.version:
        raise WorkspaceError(
            f"{where}: plan version {version!r} is unknown, this Merlin reads version {FORMAT.version}; "
            "use the version that made the workspace"
        )
    try:
        plan = as_kind(data, Plan)
    except ValueError as error:
        raise WorkspaceError(f"{where}: the plan does not have the expected content ({error})") from error
    if unknown := _unknown_key(data, to_plain(plan)):
        raise WorkspaceError(f"{where}: the plan does not have the expected content (key {unknown!r})")
    return plan


def _unknown_key(data: Any, known: Any) -> str:
    """A key in plain data that its record does not have; "" if there is none. To ignore it could change what runs."""
    if isinstance(data, dict):
        missing = [key for key in data if key not in known]
        return next(iter(missing or filter(None, (_unknown_key(data[key], known[key]) for key in data))), "")
    if isinstance(data, list):
        return next(filter(None, map(_unknown_key, data, known)), "")
    return ""


def relocate(plan: Plan, workspace: str) -> Plan:
    """The plan for a workspace that was moved: absolute paths into the old one lead into the new one.

    An extension moves with the study that it is part of, into whose directories its commands also lead.
    """
    if plan.workspace == workspace:
        return plan
    old, new = plan.workspace, workspace
    if plan.extension:
        old, new = (str(Path(path).parents[1]) if path != "." else "../.." for path in (old, new))

    def text(value: str) -> str:
        return replace_path(value, old, new)

    def scalars(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        return {name: text(value) if isinstance(value, str) else value for name, value in values.items()}

    instances = tuple(
        replace(
            instance,
            command=text(instance.command),
            restart=None if instance.restart is None else text(instance.restart),
            params=scalars(instance.params),
        )
        for instance in plan.instances
    )
    return replace(
        plan,
        workspace=workspace,
        samples=None if plan.samples is None else replace(plan.samples, file=text(plan.samples.file)),
        variables=scalars(plan.variables),
        env={name: text(value) for name, value in plan.env.items()},
        instances=instances,
        notify=tuple(replace(rule, to=tuple(map(text, rule.to))) for rule in plan.notify),
    )


def replace_path(value: str, old: str, new: str) -> str:
    """Replace the path `old` where it ends at a path boundary, so /a/study_1 is not found in /a/study_10."""
    if old not in value:
        return value
    head, *rest = value.split(old)
    for part in rest:
        follows_name = bool(part) and (part[0].isalnum() or part[0] in "-_.")
        head += (old if follows_name else new) + part
    return head


def anywhere(value: Any, spec_root: str) -> Any:
    """Plain data with $(SPECROOT) in the place of the spec's directory."""
    if isinstance(value, str):
        return value.replace(spec_root, "$(SPECROOT)") if spec_root not in ("", "/") else value
    if isinstance(value, Mapping):
        return {key: anywhere(item, spec_root) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [anywhere(item, spec_root) for item in value]
    return value


def plan_digest(plan: Plan) -> str:
    """sha256 over the plan's content; the same wherever the workspace lies."""
    data = _content(relocate(plan, "."))
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write_plan(path: Path, plan: Plan) -> None:
    """Write atomically: the file is complete or absent. Raises WorkspaceError if it cannot be written."""
    try:
        write_text(path, plan_to_json(plan))
    except OSError as error:
        raise WorkspaceError(f"cannot write {path}: {error.strerror}") from error


def read_plan(path: Path) -> Plan:
    """Raises WorkspaceError if the file is missing or is not a plan."""
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise WorkspaceError(f"cannot read the plan {path}: {error.strerror}") from error
    return plan_from_json(text, str(path))
