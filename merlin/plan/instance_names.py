"""The names of step instances, which are the names of their directories, too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from merlin.base.text import path_safe
from merlin.errors import Diagnostic, SpecError
from merlin.plan.dependencies import StepNeeds
from merlin.plan.parameters import Combination
from merlin.spec.defaults import MAX_FILE_NAME

if TYPE_CHECKING:
    from merlin.spec.load import Spec

NO_COMBINATION = Combination({}, {})


def instance_id(needs: StepNeeds, combo: Combination) -> str:
    """The instance's name and directory: "step", or "step/LABELS" with those of its parameters."""
    step = path_safe(needs.name)
    return f"{step}/{path_safe(combo.label(needs.parameters))}" if needs.parameters else step


def combinations_of(spec: Spec, needs: StepNeeds, combos: Sequence[Combination]) -> list[Combination]:
    """One combination per distinct label; a step without parameters has one instance.

    Raises SpecError for labels that name no directory, or the same one for different values.
    """
    if not needs.parameters:
        return [NO_COMBINATION]
    seen: dict[str, Combination] = {}
    for combo in combos:
        label = path_safe(combo.label(needs.parameters))
        if label in ("", ".", ".."):
            raise SpecError([_no_directory(spec, needs, combo)])
        if (size := _longest_name(needs, label)) > MAX_FILE_NAME:
            raise SpecError([_too_long(spec, needs, size)])
        first = seen.setdefault(label, combo)
        if any(first.values[name] != combo.values[name] for name in needs.parameters):
            raise SpecError([_same_directory(spec, needs, first, combo)])
    return list(seen.values())


def _no_directory(spec: Spec, needs: StepNeeds, combo: Combination) -> Diagnostic:
    name = sorted(needs.parameters)[0]
    label = combo.label(needs.parameters)
    return spec.finding(
        ("global.parameters", name),
        f"the label {label!r} of {name} gives step {needs.name} no directory of its own",
        "bad-label",
        "give it a label with letters, digits or one of -_.()",
    )


def _too_long(spec: Spec, needs: StepNeeds, size: int) -> Diagnostic:
    return spec.finding(
        ("global.parameters", sorted(needs.parameters)[0]),
        f"a label of {', '.join(sorted(needs.parameters))} gives step {needs.name} names of {size} bytes for "
        f"directories and files, and {MAX_FILE_NAME} are possible",
        "bad-label",
        "give shorter labels, e.g. label: [a, b]",
    )


def _same_directory(spec: Spec, needs: StepNeeds, a: Combination, b: Combination) -> Diagnostic:
    name = sorted(n for n in needs.parameters if a.values[n] != b.values[n])[0]
    return spec.finding(
        ("global.parameters", name),
        f"the values {a.values[name]!r} and {b.values[name]!r} of {name} give step {needs.name} "
        f"the same directory {instance_id(needs, b)!r}",
        "duplicate-label",
        "give them labels that differ in letters, digits or one of -_.()",
    )


def _longest_name(needs: StepNeeds, label: str) -> int:
    """The bytes of the longest name of a directory or file of an instance."""
    run = needs.step.run
    file = "" if run.cmd is None else f"{needs.name}_{label}{'.restart' if run.restart else ''}.out"
    return max(len(label), len(file.encode()))
