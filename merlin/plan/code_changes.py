"""How the code of a study's steps differs between two plans. Pure."""

from __future__ import annotations

from merlin.plan.plan import Plan


def code_changes(old: Plan, new: Plan) -> dict[str, list[str]]:
    """One line for every file that has changed, by step; steps without such files are left out.

    A step of which one of the plans has no record, because an earlier version made it, is left out as well.
    """
    steps = {step: _lines(old.code[step], files) for step, files in new.code.items() if step in old.code}
    return {step: lines for step, lines in steps.items() if lines}


def _lines(old: dict[str, str], new: dict[str, str]) -> list[str]:
    lines = []
    for file in sorted({*old, *new}):
        if file not in new:
            lines.append(f"{file} is gone")
        elif file not in old:
            lines.append(f"{file} is new")
        elif old[file] != new[file]:
            lines.append(f"{file} has changed")
    return lines
