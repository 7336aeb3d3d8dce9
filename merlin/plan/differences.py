"""What in a plan would make other rows of a data set than another plan makes. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.plan.plan_io import relocate

_WORKSPACE = "$(MERLIN_WORKSPACE)"  # in what is shown
MAX_LINES = 8  # of a difference that are shown

# what says who runs a step, how often it is tried, and what is shown of it
_FREE = frozenset(
    {
        "description", "queue", "max_retries", "retry_delay_s", "timeout_s", "max_failures", "canary",
        "crash_limit", "resources", "fresh_shell", "feeds", "same_workspaces", "num_tasks", "aggregate",
    }
)  # fmt: skip
_FREE_OF_AGGREGATES = frozenset({"cleanup", "needed_by", "level", "fields"})
_FREE_OF_FIELDS = frozenset({"description", "level"})


@dataclass(frozen=True, slots=True)
class Difference:
    step: str
    message: str


def differences(old: Plan, new: Plan) -> list[Difference]:
    """Where `new` is not what `old` is; places, numbers of tasks, queues and retries do not count.

    Steps that run once, after the samples, may differ if no row depends on them.
    """
    ours = _texts(relocate(old, _WORKSPACE), old.spec_root)
    theirs = _texts(relocate(new, _WORKSPACE), new.spec_root)
    found = []
    for id in dict.fromkeys((*ours, *theirs)):
        if id not in theirs:
            found.append(Difference(ours[id]["step"], f"step instance {id} is gone"))
        elif id not in ours:
            found.append(Difference(theirs[id]["step"], f"step instance {id} is new"))
        else:
            found += _of_instance(ours[id], theirs[id])
    if old.env != new.env:
        found.append(Difference("", f"the environment of tasks: {changed(old.env, new.env)}"))
    return found


def _texts(plan: Plan, spec_root: str) -> dict[str, dict[str, Any]]:
    """Everything of each instance that shapes its rows, by what it is called, wherever the spec lies."""
    return {one.id: anywhere(_parts(asdict(one)), spec_root) for one in _making_rows(plan)}


def _parts(instance: dict[str, Any]) -> dict[str, Any]:
    aggregate = instance["aggregate"]
    free = _FREE | {"edges"} if instance["kind"] == StepKind.MANIFEST else _FREE
    parts = {key: value for key, value in instance.items() if key not in free}
    if instance["kind"] == StepKind.AGGREGATE and aggregate:
        parts |= {key: value for key, value in aggregate.items() if key not in _FREE_OF_AGGREGATES}
        for field in aggregate["fields"]:
            name = field["name"]
            parts[f"field {name}"] = "there"
            parts |= {f"{k} of field {name}": v for k, v in field.items() if k not in _FREE_OF_FIELDS}
    return parts


def _making_rows(plan: Plan) -> list[StepInstance]:
    """All instances but those that run once, after the samples, and that nothing waits for that makes rows."""
    gathers = (StepKind.AGGREGATE, StepKind.MANIFEST)
    late: set[str] = set()  # new samples change what they see
    for instance in plan.instances:
        if instance.per_sample or any(edge.source in late for edge in instance.edges):
            late.add(instance.id)
    makes: set[str] = set()
    for instance in reversed(plan.instances):
        if instance.per_sample or instance.kind in gathers or instance.id in makes or instance.id not in late:
            makes.add(instance.id)
            # a manifest also waits for steps that read the samples' files, if these are cleaned up
            if instance.kind is not StepKind.MANIFEST:
                makes.update(edge.source for edge in instance.edges)
    return [instance for instance in plan.instances if instance.id in makes]


def anywhere(value: Any, spec_root: str) -> Any:
    if isinstance(value, str):
        return value.replace(spec_root, "$(SPECROOT)") if spec_root not in ("", "/") else value
    if isinstance(value, Mapping):
        return {key: anywhere(item, spec_root) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [anywhere(item, spec_root) for item in value]
    return value


def _of_instance(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    for part in dict.fromkeys((*old, *new)):
        if part not in old or part not in new:
            if part.startswith("field "):  # what the field is does not matter then
                now = "'not there', now 'new'" if part in new else "'there', now 'gone'"
                yield Difference(old["step"], f"{part} of {old['id']}: {now}")
        elif old[part] != new[part]:
            yield Difference(old["step"], f"{part} of {old['id']}: {changed(old[part], new[part])}")


def changed(old: Any, new: Any) -> str:
    """ "a, now b"; of texts of several lines, the lines that differ."""
    if not (isinstance(old, str) and isinstance(new, str) and "\n" in old + new):
        return f"{old!r}, now {new!r}"
    diff = difflib.ndiff(old.splitlines(), new.splitlines())
    lines = [f"\n    {line}" for line in diff if line[:1] in "-+"]
    more = len(lines) - MAX_LINES
    return "".join(lines[:MAX_LINES]) + (f"\n    and {more} more lines" if more > 0 else "")
