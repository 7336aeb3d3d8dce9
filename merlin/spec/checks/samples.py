"""The samples block: columns, where the file comes from, and what built-in methods need."""

from __future__ import annotations

from pathlib import Path

from merlin.base.document.findings import Findings, allowed
from merlin.base.document.scalars import Problem, shown, to_float
from merlin.base.document.tree import Entry, to_data
from merlin.spec.checks.parameters import check_token_name
from merlin.spec.defaults import SAMPLES_SUFFIXES
from merlin.spec.expand import Expansion


def check_samples(expansion: Expansion, findings: Findings) -> None:
    """Everything about merlin.samples that needs more than one value."""
    samples = expansion.tree.get("merlin", "samples")
    if not samples.mapping:
        return
    labels = _check_columns(samples, expansion, findings)
    generate = samples.get("generate")
    given = {key for key, item in generate.mapping.items() if not item.is_null}
    if "method" in given:
        _check_method(generate, given, labels, findings)
    else:
        _check_command(samples, generate, given, findings)
    if given:  # files that exist are looked at
        _check_suffix(samples.get("file"), findings)


def _check_columns(samples: Entry, expansion: Expansion, findings: Findings) -> list[str]:
    entry = samples.get("column_labels")
    if isinstance(entry.content, list) and not entry.content:
        findings.error(entry.key_place, "column_labels is empty", text="column_labels", code="empty")
    parameters = expansion.tree.get("global.parameters").mapping
    seen: list[str] = []
    for item in entry.items:
        name = item.text
        if name in seen:
            findings.error(item.place, f"column {name!r} is there twice", text=name, code="duplicate-column")
        elif name in parameters:
            message = f"{name} is both a column of the samples and a parameter"
            hint = f"the parameter is on line {parameters[name].key_place[0]}; rename one of them"
            findings.error(item.place, message, text=name, hint=hint, code="name-clash")
        elif name:
            check_token_name(name, item, "column", expansion, findings)
        seen.append(name)
    return seen


def _check_command(samples: Entry, generate: Entry, given: set[str], findings: Findings) -> None:
    file = samples.get("file")
    for key in sorted(given - {"cmd"} & {"num", "bounds", "seed"}):
        message = f"{key} goes with method, and generate has none"
        hint = "add method: latin_hypercube (or sobol, halton, uniform, normal, grid)"
        findings.error(generate.get(key).key_place, message, text=key, hint=hint, code="samples")
    if "cmd" in given and file.is_null:
        message = "merlin.samples has no file, so nobody knows what generate.cmd writes"
        hint = "e.g. file: $(MERLIN_INFO)/samples.npy"
        findings.error(samples.key_place, message, hint=hint, code="missing")
    elif not given and file.is_null:
        message = "merlin.samples has neither file nor generate"
        hint = "name a file, or let one be made: generate: {method: sobol, num: 128, bounds: {…}}"
        findings.error(samples.key_place, message, hint=hint, code="missing")


def _check_suffix(file: Entry, findings: Findings) -> None:
    """Check the kind of the file, unless its name is a pattern, or is not known yet."""
    name = Path(file.text).name
    if (
        name
        and not any(mark in name for mark in "$*?[")
        and Path(name.lower()).suffix not in SAMPLES_SUFFIXES
    ):
        message = f"{shown(name)} is no kind of samples file"
        hint = f"allowed: {', '.join(SAMPLES_SUFFIXES)}"
        findings.error(file.place, message, text=file.text, hint=hint, code="samples")


def _check_method(generate: Entry, given: set[str], labels: list[str], findings: Findings) -> None:
    method = generate.get("method").text
    if "cmd" in given:
        message = "generate has both cmd and method"
        hint = "samples come from one of them"
        findings.error(generate.get("cmd").key_place, message, text="cmd", hint=hint, code="samples")
    for key in ("num", "bounds"):
        if key not in given:
            message = f"method {method} needs {key}"
            findings.error(generate.key_place, message, text=method, code="missing", hint=_EXAMPLES[key])
    num = generate.get("num")
    if isinstance(num.content, list):
        if method != "grid":
            findings.error(
                num.place, f"num is one number for {method}", hint="a list is for grid", code="samples"
            )
        elif labels and len(num.content) != len(labels):
            message = f"num has {len(num.content)} entries for {len(labels)} columns"
            hint = "give the points of every column, or one number"
            findings.error(num.place, message, hint=hint, code="samples")
    if "bounds" in given:
        _check_bounds(generate.get("bounds"), method, labels, findings)


_EXAMPLES = {"num": "e.g. num: 1000", "bounds": "e.g. bounds: {X0: [0, 1]}, one entry for every column label"}


def _check_bounds(bounds: Entry, method: str, labels: list[str], findings: Findings) -> None:
    for name, pair in bounds.mapping.items():
        if labels and name not in labels:  # missing labels are reported elsewhere
            message = f"bounds name {name!r}, which is no column of the samples"
            hint = allowed(name, labels, "columns")
            findings.error(pair.key_place, message, text=name, hint=hint, code="bounds")
        _check_pair(name, pair, method, findings)
    absent = [label for label in labels if label not in bounds.mapping]
    if absent and isinstance(bounds.content, dict):
        message = f"bounds of {', '.join(absent)} are missing"
        hint = "every column needs [low, high]"
        findings.error(bounds.key_place, message, text=absent[0], hint=hint, code="bounds")


def _check_pair(name: str, pair: Entry, method: str, findings: Findings) -> None:
    data = to_data(pair)
    if not isinstance(data, list) or len(data) != 2:
        return  # the model reports it
    try:
        low, high = to_float(data[0]), to_float(data[1])
    except Problem:
        return
    if method == "normal":
        if high <= 0:
            findings.error(
                pair.place,
                f"the standard deviation of {name} is {high:g}",
                text=shown(f"[{data[0]}, {data[1]}]"),
                hint="for normal, bounds are [mean, standard deviation], the second above 0",
                code="bounds",
            )
    elif low >= high:
        message = f"the bounds of {name} are not in order: {low:g} is not below {high:g}"
        hint = "write [low, high]"
        findings.error(pair.place, message, text=shown(f"[{data[0]}, {data[1]}]"), hint=hint, code="bounds")
