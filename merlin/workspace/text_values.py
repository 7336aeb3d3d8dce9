"""Text among the samples that a shell would act on: refused where a step puts it into a script.

A script may have any number, and text of harmless characters. Every other text reaches a step in an environment
variable (`merlin.spec.variables.value_variable`), which no shell reads as a part of the script.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence

from msgspec import Struct

from merlin.errors import Diagnostic
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.spec.quoting import uses
from merlin.spec.variables import mentioned_values, value_variable
from merlin.workspace.samples_table import SamplesTable

_WORD = re.compile(r"[\w@%+=:,./-]*")  # what no shell, and no other interpreter inside of a string, acts on
_WORDS = re.compile(r"[\w@%+=:,./ \t-]*")
_WORD_BYTES = f"{string.ascii_letters}{string.digits}_@%+=:,./-".encode()
_SHOWN_CHARACTERS = 40


class ColumnUse(Struct, frozen=True):
    """How the scripts of a study use a column."""

    label: str
    step: str  # the first that uses it so
    in_script: bool = True  # else as an environment variable alone, which can hold anything but NUL
    in_quotes: bool = True  # wherever it is in a script

    @property
    def exposure(self) -> tuple[bool, bool]:
        """A sort key: the more a shell may do to the value, the greater it is."""
        return self.in_script, not self.in_quotes


def column_uses(plan: Plan) -> list[ColumnUse]:
    """The columns that scripts use, each with its most exposed use."""
    labels = () if plan.samples is None else plan.samples.labels
    found: dict[str, ColumnUse] = {}
    for instance in plan.instances:
        if instance.kind is StepKind.CMD and instance.per_sample:
            for use in _of_instance(instance, labels):
                known = found.get(use.label)
                if known is None or known.exposure < use.exposure:
                    found[use.label] = use
    return list(found.values())


def _of_instance(instance: StepInstance, labels: Sequence[str]) -> Iterator[ColumnUse]:
    for script in (instance.command or "", instance.restart or ""):
        variables = mentioned_values(script)
        for label in labels:
            if value_variable(label) in variables:
                yield ColumnUse(label, instance.step, in_script=False)
        for use in uses(script):
            names = labels if use.token.name == "MERLIN_SAMPLE_VECTOR" else (use.token.name,)
            for label in set(names) & set(labels):
                yield ColumnUse(label, instance.step, in_quotes=use.in_quotes)


def unsafe_values(plan: Plan, table: SamplesTable, limit: int) -> list[Diagnostic]:
    """The first `limit` values that a script of the plan must not have, in the order of the rows."""
    if table.known_numeric or table.has_only(_WORD_BYTES):
        return []
    columns = [(use, table.labels.index(use.label)) for use in column_uses(plan)]
    if not columns:
        return []
    found: list[Diagnostic] = []
    for lo, hi in table.blocks():
        texts = list(zip(*table.text_rows(lo, hi), strict=True))
        bad = [(row, use, j) for use, j in columns for row in _unsafe_rows(use, texts[j])]
        for row, use, j in sorted(bad, key=lambda each: (each[0], each[2])):
            if len(found) == limit:
                return found
            found.append(_finding(table, use, lo + row, j, texts[j][row]))
    return found


def _unsafe_rows(use: ColumnUse, column: Sequence[str]) -> list[int]:
    harmless = _WORDS if use.in_quotes else _WORD
    if harmless.fullmatch(",".join(column)):  # a comma is harmless, too
        return []
    return [row for row, text in enumerate(column) if _offence(use, text)]


def _offence(use: ColumnUse, text: str) -> str:
    """The first character that must not be in a script, "" if there is none; a number may stand anywhere."""
    if not use.in_script:
        return "\0" if "\0" in text else ""
    harmless = _WORDS if use.in_quotes else _WORD
    if harmless.fullmatch(text) or _is_number(text):
        return ""
    return next((c for c in text if not harmless.fullmatch(c) and (c.isascii() or not c.isprintable())), "")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "\n" not in text.strip(" \t\r")


def _finding(table: SamplesTable, use: ColumnUse, row: int, j: int, text: str) -> Diagnostic:
    offence, variable = _offence(use, text), value_variable(use.label)
    shown = repr(text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…")
    what = "a blank" if offence in " \t" else repr(offence)
    why = f"and step {use.step!r} puts it into its script"
    hint = f'let the step use the environment variable {variable} in place of $({use.label}): in a shell "${variable}"'
    if offence in " \t":
        why = f"and step {use.step!r} uses $({use.label}) outside of quotes"
        hint = f'write "$({use.label})" in quotes'
    elif offence == "\0":
        why, hint = "and neither a script nor an environment variable can hold it", ""
    path, line, col = table.place(row, j)
    return Diagnostic(
        file=path,
        line=line,
        col=col,
        message=f"row {row}, column {use.label}: {shown} has {what} in it, {why}",
        text=text,
        hint=hint,
        code="samples-shell",
    )
