"""Variables of the spec that functions read, as context.variables["SCALE"]: a change of one is a change of code.

Nothing in the step of a function says that it reads a variable; the name in quotes in its Python files does.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from merlin.plan.code_changes import code_changes
from merlin.plan.plan import Plan
from merlin.plan.plan_io import anywhere, relocate
from merlin.spec.variables import OUTPUT_PATH

Code = Mapping[str, Mapping[str, str]]  # as `Plan.code`
_MARK = "variable "  # before the names of variables among those of files
_QUOTED = re.compile(r"""["']([\w.-]+)(?=["'])""")


def variables_read(plan: Plan, code: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    """The variables that each function step reads; `code` are the files of the steps."""
    functions = {each.step for each in plan.instances if each.function}
    known = plan.variables.keys() - {OUTPUT_PATH}
    return {
        step: {name for file in files if file.endswith(".py") for name in _quoted(plan, file) & known}
        for step, files in code.items()
        if step in functions
    }


def with_variables(plan: Plan, names: Mapping[str, Collection[str]]) -> Plan:
    """The plan with variables among its steps' code: as it has them, or as they were when kept results were made."""
    values = anywhere(relocate(replace(plan, instances=()), ".").variables, plan.spec_root)
    read = {
        step: {_MARK + name: _digest(values[name]) for name in names.get(step, ()) if name in values}
        for step in plan.code
    }
    return replace(plan, code={step: read[step] | dict(files) for step, files in plan.code.items()})


def without_own_values(code: Code, plan: Plan) -> dict[str, dict[str, str]]:
    """The code without those variables that `plan`, made `with_variables`, has the same values of."""
    return {
        step: {
            name: digest
            for name, digest in files.items()
            if not (name.startswith(_MARK) and plan.code[step].get(name) == digest)
        }
        for step, files in code.items()
    }


def changed_variables(old: Plan, new: Plan) -> dict[str, list[str]]:
    """One line for each variable that a function of the old plan reads, and that has another value in the new one.

    They are sorted by step.
    """
    names = variables_read(new, old.code)
    kept = {
        step: {name: digest for name, digest in files.items() if name.startswith(_MARK)}
        for step, files in old.code.items()
    }
    before = with_variables(replace(old, code=kept), names)
    return code_changes(before, with_variables(replace(new, code={step: {} for step in kept}), names))


def _quoted(plan: Plan, file: str) -> set[str]:
    """The words in quotes in a file of a step's code."""
    with suppress(OSError):
        text = (Path(plan.spec_root) / file).read_text(encoding="utf-8", errors="replace")
        return set(_QUOTED.findall(text))
    return set()


def _digest(value: object) -> str:
    return hashlib.sha256(repr(value).encode("utf-8", "surrogateescape")).hexdigest()
