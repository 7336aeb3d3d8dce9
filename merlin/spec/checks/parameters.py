"""Global parameters: each has the same number of values, labels that differ, and a name of its own."""

from __future__ import annotations

from merlin.base.document.findings import Findings
from merlin.base.document.scalars import missed_number, yaml_number
from merlin.base.document.tokens import TOKEN
from merlin.base.document.tree import Entry
from merlin.spec.expand import Expansion
from merlin.spec.variables import RESERVED


def check_parameters(expansion: Expansion, findings: Findings) -> None:
    """Everything about global.parameters that needs more than one value."""
    parameters = expansion.tree.get("global.parameters").mapping
    runs = [step.get("run") for step in expansion.tree.get("study").items]
    typed = any(not run.get(kind).is_null for run in runs for kind in ("function", "aggregate"))
    first: tuple[str, int] | None = None
    for name, parameter in parameters.items():
        check_token_name(name, parameter, "parameter", expansion, findings)
        values = parameter.get("values")
        if not isinstance(values.content, list):
            continue
        num = len(values.content)
        if not num:
            findings.error(values.place, f"parameter {name} has no values", text=name, code="empty")
        if first is None:
            first = (name, num)
        elif num != first[1]:
            message = f"parameter {name} has {num} values, but {first[0]} has {first[1]}"
            hint = "the i-th values of all parameters belong together, so all need the same number"
            findings.error(values.place, message, text=name, hint=hint, code="parameter-length")
        _check_values(name, values, findings)
        if typed:  # scripts get the text
            _check_numbers(name, values, findings)
        _check_label(name, parameter.get("label"), num, findings)


def _check_values(name: str, values: Entry, findings: Findings) -> None:
    for item in values.items:
        if isinstance(item.content, dict | list) or item.is_null:
            message = f"a value of parameter {name} is not a number or a text"
            findings.error(item.place, message, text=name, code="type")


def _check_numbers(name: str, values: Entry, findings: Findings) -> None:
    for item in values.items:
        number = missed_number(item.text) if item.plain else None
        if number is not None:
            message = f"the value {item.text} of parameter {name} is a text in YAML"
            hint = f"for a number write {yaml_number(number)}, for a text put it in quotes"
            findings.warning(item.place, message, text=item.text, hint=hint, code="type")


def _check_label(name: str, label: Entry, num: int, findings: Findings) -> None:
    if isinstance(label.content, list) and len(label.content) != num:
        message = f"parameter {name} has {num} values, but {len(label.content)} labels"
        hint = "give each value a label, or one label with %% in it"
        findings.error(label.place, message, text=name, hint=hint, code="parameter-length")
    if isinstance(label.content, str) and "%%" not in label.content:
        message = f"the label of parameter {name} has no %%, so all its values would share one directory"
        findings.error(label.place, message, text=label.content, hint=f"e.g. label: {name}.%%", code="label")


def check_token_name(name: str, entry: Entry, what: str, expansion: Expansion, findings: Findings) -> None:
    """Check that a parameter or column has a valid name for `$(name)`, which nothing else has."""
    place = entry.key_place if what == "parameter" else entry.place
    if not TOKEN.fullmatch(f"$({name})"):
        message = f"{name!r} cannot name a {what}: $({name}) would not be found"
        findings.error(place, message, text=name, hint="use letters, digits and '_'", code="bad-name")
    elif name in RESERVED:
        findings.error(place, f"{name} is reserved and cannot name a {what}", text=name, code="reserved")
    elif name in expansion.values:
        variable = expansion.tree.get("env", "variables", name)
        where = f" (line {variable.key_place[0]})" if variable.key_place[0] else ""
        message = f"{name} is both a {what} and a variable{where}"
        findings.error(place, message, text=name, hint="rename one of them", code="name-clash")
