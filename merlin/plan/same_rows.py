"""Whether a plan would make the same rows of a data set as another plan. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from merlin.plan.change_words import changed
from merlin.plan.plan import Plan, StepKind
from merlin.plan.revise import OF_THE_MANIFEST, definitions

MAX_LINES = 8  # of a difference that are shown
_FREE = frozenset({"level", "description"})  # parts that do not change the rows


class Difference(Struct, frozen=True):
    step: str
    message: str


def differences(old: Plan, new: Plan) -> list[Difference]:
    """Changes in the definitions of steps, as far as they would change rows.

    Steps that run once, after the samples, may differ if no row depends on them.
    """
    ours, theirs = _definitions(old), _definitions(new)
    found = []
    for id in dict.fromkeys((*ours, *theirs)):
        if id not in theirs:
            found.append(Difference(ours[id]["step"], f"step instance {id} is gone"))
        elif id not in ours:
            found.append(Difference(theirs[id]["step"], f"step instance {id} is new"))
        else:
            found += _of_instance(id, ours[id], theirs[id])
    if old.env != new.env:
        found.append(Difference("", f"the environment of tasks: {_changed(old.env, new.env)}"))
    return found


def _definitions(plan: Plan) -> dict[str, dict[str, Any]]:
    makes = _making_rows(plan)
    return {id: dict(_of_rows(parts)) for id, parts in definitions(plan).items() if id in makes}


def _of_rows(parts: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The parts of a definition that can change rows; a manifest's other parts are those of its data set."""
    for part, value in parts.items():
        is_its_own = parts["kind"] != StepKind.MANIFEST or part in OF_THE_MANIFEST or part in ("step", "kind")
        if is_its_own and part.rpartition(".")[2] not in _FREE:
            yield part, value


def _making_rows(plan: Plan) -> set[str]:
    """All instances, except those that run once, after the samples, and on which no instance with rows depends."""
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
    return makes


def _of_instance(id: str, old: dict[str, Any], new: dict[str, Any]) -> Iterator[Difference]:
    for part in dict.fromkeys((*old, *new)):
        if part not in old or part not in new:
            if part.startswith("field "):  # one line is enough for the whole field
                yield Difference(old["step"], f"{part} of {id} is {'new' if part in new else 'gone'}")
        elif old[part] != new[part]:
            yield Difference(old["step"], f"{_named(part)} of {id}: {_changed(old[part], new[part])}")


def _changed(old: Any, new: Any) -> str:
    """ "a, now b"; of texts of several lines, the lines that differ."""
    if not (isinstance(old, str) and isinstance(new, str) and "\n" in old + new):
        return changed(old, new)
    diff = difflib.ndiff(old.splitlines(), new.splitlines())
    lines = [f"\n    {line}" for line in diff if line[:1] in "-+"]
    more = len(lines) - MAX_LINES
    return "".join(lines[:MAX_LINES]) + (f"\n    and {more} more lines" if more > 0 else "")


def _named(part: str) -> str:
    """ "dtype of field y" for fields.y.dtype."""
    field, _, key = part.removeprefix("fields.").rpartition(".")
    return f"{key} of field {field}" if field else part
