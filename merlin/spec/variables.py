"""Names with a meaning: what is reserved, what makes a step per sample, and how user variables resolve."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path

from msgspec import Struct

from merlin.base.document.tokens import find_tokens, substitute, substitute_in_names


class ReturnCode(IntEnum):
    """Exit codes with a meaning, as upstream; the spec writes them ``$(MERLIN_SUCCESS)`` and so on."""

    SUCCESS = 0
    RESTART = 100
    SOFT_FAIL = 101
    HARD_FAIL = 102
    DRY_SUCCESS = 103
    RETRY = 104
    STOP_WORKERS = 105
    RAISE_ERROR = 106


RETURN_CODE_VARIABLES = {f"MERLIN_{code.name}": int(code) for code in ReturnCode}

# Column labels make a step per sample too; $(MERLIN_SAMPLE_NAMES) is the same for every sample and does not.
SAMPLE_TOKENS = frozenset({"MERLIN_SAMPLE_ID", "MERLIN_SAMPLE_PATH", "MERLIN_SAMPLE_VECTOR"})

# Known once the workspace exists.
STUDY_VARIABLES = frozenset(
    {
        "SPECROOT", "MERLIN_TIMESTAMP", "MERLIN_WORKSPACE", "MERLIN_INFO", "MERLIN_SPEC_ORIGINAL_TEMPLATE",
        "MERLIN_SPEC_EXECUTED_RUN", "MERLIN_SPEC_ARCHIVED_COPY",
    }
)  # fmt: skip
# Known when a step (or one of its tasks) is rendered.
STEP_VARIABLES = SAMPLE_TOKENS | {
    "WORKSPACE", "LAUNCHER", "VLAUNCHER", "MERLIN_SAMPLE_NAMES", "MERLIN_GLOB_PATH", "MERLIN_PATHS_ALL",
}  # fmt: skip
RESERVED = STUDY_VARIABLES | STEP_VARIABLES | frozenset(RETURN_CODE_VARIABLES)

# A task finds the value of the column LABEL in the environment variable MERLIN_VALUE_LABEL: text that no shell reads.
VALUE_PREFIX = "MERLIN_VALUE_"
_NOT_IN_VARIABLES = re.compile(r"[^A-Za-z0-9_]")
_VALUE_VARIABLE = re.compile(rf"(?<!\w){VALUE_PREFIX}\w+", re.ASCII)

# A user may assign it; without that, study/ fills in the current directory.
OUTPUT_PATH = "OUTPUT_PATH"


class Resolved(Struct, frozen=True):
    """User variables with their references filled in, and every circle among them."""

    values: dict[str, str]
    cycles: tuple[tuple[str, ...], ...]  # ("A", "B", "A")


def value_variable(label: str) -> str:
    """The environment variable that holds a task's value of a column: that of `inlet-U` is MERLIN_VALUE_inlet_U."""
    return VALUE_PREFIX + _NOT_IN_VARIABLES.sub("_", label)


def mentioned_values(text: str) -> frozenset[str]:
    """The names of such variables in a script, however it uses them."""
    return frozenset(_VALUE_VARIABLE.findall(text)) if VALUE_PREFIX in text else frozenset()


def sample_names(labels: Sequence[str]) -> Mapping[str, str]:
    """Every name whose use makes a step per sample, as used in commands, by its spelling in the spec."""
    names = {label: label for label in labels}
    for name in SAMPLE_TOKENS:
        names[name] = names[name.lower()] = name
    return names


def uses_samples(script: str, labels: Sequence[str]) -> bool:
    """Whether a script uses a sample, so that its step runs once for each of them."""
    names, variables = sample_names(labels), set(map(value_variable, labels))
    is_named = any(token.name in names for token in find_tokens(script))
    return is_named or bool(variables & mentioned_values(script))


def expand_home(text: str) -> str:
    """Fill in `~`, `$NAME` and `${NAME}` from the environment; unset names stay as written."""
    if "~" not in text and "$" not in text:
        return text
    return os.path.expandvars(os.path.expanduser(text))  # noqa: PTH111 - text, not always a path


def resolve_variables(raw: Mapping[str, str]) -> Resolved:
    """Fill each variable into the others, in any order of definition; members of a circle keep their text."""
    values: dict[str, str] = {}
    cycles: list[tuple[str, ...]] = []
    stack: list[str] = []

    def visit(name: str) -> str:
        if name in values:
            return values[name]
        if name in stack:
            circle = (*stack[stack.index(name) :], name)
            if not any(set(circle) == set(known) for known in cycles):
                cycles.append(circle)
            return f"$({name})"
        stack.append(name)
        text = raw[name]
        known: dict[str, str] = {}
        # of $(A_$(B)), B first
        while new := {
            t.name: None for t in find_tokens(substitute_in_names(text, known)) if t.name not in known
        }:
            for other in new:
                known[other] = visit(other) if other in raw else f"$({other})"
        stack.pop()
        values[name] = expand_home(substitute(text, known))
        return values[name]

    for name in raw:
        visit(name)
    return Resolved(values, tuple(cycles))


def provenance_stem(path: str | Path) -> str:
    """Stem of the provenance files; a spec that is itself one of these files gives back the first one's."""
    name = Path(path).name
    for mark in (".orig", ".partial", ".expanded"):
        name = name.replace(f"{mark}.", ".")
    return Path(name).stem
