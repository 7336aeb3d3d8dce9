"""Whether a plan would make the same rows of a data set as another plan. Pure."""

from __future__ import annotations

import difflib
from typing import Any

from msgspec import Struct

from merlin.plan.change_words import changed, changes
from merlin.plan.growing import settled_instances
from merlin.plan.plan import Plan, StepKind
from merlin.plan.revise import definition_changes, definitions

MAX_LINES = 8  # of a difference that are shown
_OF_NO_ROW = ("level", "description")  # of an aggregate, of a field


class Difference(Struct, frozen=True):
    step: str
    message: str


def differences(old: Plan, new: Plan) -> list[Difference]:
    """Changes in the definitions of steps, as far as they would change rows; each is named once for a step.

    Steps that run once, after the samples, may differ if no row depends on them.
    """
    ours, theirs = _definitions(old), _definitions(new)
    found = []
    for id in dict.fromkeys((*ours, *theirs)):
        step = (ours if id in ours else theirs)[id]["step"]
        if id in ours and id in theirs:
            words = definition_changes(ours[id], theirs[id], _changed)
            found += [Difference(step, f"{step}: {each}") for each in words]
        else:
            found.append(Difference(step, f"step instance {id} is {'new' if id in theirs else 'gone'}"))
    if old.env != new.env:
        found += [Difference("", words) for words in changes("environment", old.env, new.env, _changed)]
    return list(dict.fromkeys(found))


def _definitions(plan: Plan) -> dict[str, dict[str, Any]]:
    """The definitions of what makes rows, without the parts that do not change them."""
    makes, found = _making_rows(plan), definitions(plan)
    return {
        id: {
            name: part
            for name, part in found[id].items()
            if name.partition(" of field ")[0] not in _OF_NO_ROW
        }
        for id in found
        if id in makes
    }


def _making_rows(plan: Plan) -> set[str]:
    """All instances, except those that run once, after the samples, and on which no instance with rows depends."""
    gathers = (StepKind.AGGREGATE, StepKind.MANIFEST)
    settled = settled_instances(plan)  # new samples change what the others see
    makes: set[str] = set()
    for instance in reversed(plan.instances):
        if instance.per_sample or instance.kind in gathers or instance.id in makes or instance.id in settled:
            makes.add(instance.id)
            # a manifest also waits for steps that read the samples' files, if these are cleaned up
            if instance.kind is not StepKind.MANIFEST:
                makes.update(edge.source for edge in instance.edges)
    return makes


def _changed(old: Any, new: Any) -> str:
    """ "a, now b"; of texts of several lines, the lines that differ."""
    if not (isinstance(old, str) and isinstance(new, str) and "\n" in old + new):
        return changed(old, new)
    diff = difflib.ndiff(old.splitlines(), new.splitlines())
    lines = [f"\n    {line}" for line in diff if line[:1] in "-+"]
    more = len(lines) - MAX_LINES
    return "".join(lines[:MAX_LINES]) + (f"\n    and {more} more lines" if more > 0 else "")
