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
        "crash_limit", "resources", "fresh_shell", "feeds", "same_workspaces",
    }
)  # fmt: skip
_FREE_OF_AGGREGATES = frozenset({"cleanup", "needed_by", "level"})
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
        found.append(Difference("", f"the environment of tasks: {_changed(old.env, new.env)}"))
    return found


def _texts(plan: Plan, spec_root: str) -> dict[str, dict[str, Any]]:
    """What counts of every instance, wherever the spec lies."""
    return {
        instance.id: _anywhere({k: v for k, v in asdict(instance).items() if k not in _FREE}, spec_root)
        for instance in _making_rows(plan)
    }


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


def _anywhere(value: Any, spec_root: str) -> Any:
    if isinstance(value, str):
        return value.replace(spec_root, "$(SPECROOT)") if spec_root not in ("", "/") else value
    if isinstance(value, Mapping):
        return {key: _anywhere(item, spec_root) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_anywhere(item, spec_root) for item in value]
    return value


def _of_instance(old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    for key in old:
        is_free = key in ("num_tasks", "aggregate") or (key == "edges" and old["kind"] == StepKind.MANIFEST)
        if is_free or old[key] == new[key]:
            continue
        yield Difference(old["step"], f"{key} of {old['id']}: {_changed(old[key], new[key])}")
    if old["kind"] == StepKind.AGGREGATE and old["aggregate"] and new["aggregate"]:
        for place, was, is_now in _of_aggregate(old["aggregate"], new["aggregate"]):
            yield Difference(old["step"], f"{place} of {old['id']}: {_changed(was, is_now)}")


def _of_aggregate(old: dict[str, Any], new: dict[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """(what, before, now) of everything that shapes a data set."""
    for key in old:
        if key != "fields" and key not in _FREE_OF_AGGREGATES and old[key] != new[key]:
            yield key, old[key], new[key]
    ours = {field["name"]: field for field in old["fields"]}
    theirs = {field["name"]: field for field in new["fields"]}
    for name in dict.fromkeys((*ours, *theirs)):
        was, is_now = ours.get(name), theirs.get(name)
        if was is None or is_now is None:
            yield (
                f"field {name}",
                "not there" if was is None else "there",
                "gone" if is_now is None else "new",
            )
            continue
        for key in was:
            if key not in _FREE_OF_FIELDS and was[key] != is_now[key]:
                yield f"{key} of field {name}", was[key], is_now[key]


def _changed(old: Any, new: Any) -> str:
    """ "a, now b"; of texts of several lines, the lines that differ."""
    if not (isinstance(old, str) and isinstance(new, str) and "\n" in old + new):
        return f"{old!r}, now {new!r}"
    diff = difflib.ndiff(old.splitlines(), new.splitlines())
    lines = [f"\n    {line}" for line in diff if line[:1] in "-+"]
    more = len(lines) - MAX_LINES
    return "".join(lines[:MAX_LINES]) + (f"\n    and {more} more lines" if more > 0 else "")
