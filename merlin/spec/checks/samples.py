"""The samples block: columns, where the file comes from, and what built-in methods need."""

from __future__ import annotations

from merlin.base.document.findings import Findings, allowed
from merlin.base.document.scalars import Problem, shown, to_float
from merlin.base.document.tree import Entry, to_data
from merlin.spec.checks.parameters import check_token_name
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
            findings.error(
                item.place,
                f"{name} is both a column of the samples and a parameter",
                text=name,
                hint=f"the parameter is on line {parameters[name].key_place[0]}; rename one of them",
                code="name-clash",
            )
        elif name:
            check_token_name(name, item, "column", expansion, findings)
        seen.append(name)
    return seen


def _check_command(samples: Entry, generate: Entry, given: set[str], findings: Findings) -> None:
    file = samples.get("file")
    for key in sorted(given - {"cmd"} & {"num", "bounds", "seed"}):
        findings.error(
            generate.get(key).key_place,
            f"{key} goes with method, and generate has none",
            text=key,
            hint="add method: latin_hypercube (or sobol, halton, uniform, normal, grid)",
            code="samples",
        )
    if "cmd" in given and file.is_null:
        findings.error(
            samples.key_place,
            "merlin.samples has no file, so nobody knows what generate.cmd writes",
            hint="e.g. file: $(MERLIN_INFO)/samples.npy",
            code="missing",
        )
    elif not given and file.is_null:
        findings.error(
            samples.key_place,
            "merlin.samples has neither file nor generate",
            hint="name a file, or let one be made: generate: {method: sobol, num: 128, bounds: {…}}",
            code="missing",
        )


def _check_method(generate: Entry, given: set[str], labels: list[str], findings: Findings) -> None:
    method = generate.get("method").text
    if "cmd" in given:
        findings.error(
            generate.get("cmd").key_place,
            "generate has both cmd and method",
            text="cmd",
            hint="samples come from one of them",
            code="samples",
        )
    for key in ("num", "bounds"):
        if key not in given:
            findings.error(
                generate.key_place,
                f"method {method} needs {key}",
                text=method,
                code="missing",
                hint=_EXAMPLES[key],
            )
    num = generate.get("num")
    if isinstance(num.content, list):
        if method != "grid":
            findings.error(
                num.place, f"num is one number for {method}", hint="a list is for grid", code="samples"
            )
        elif labels and len(num.content) != len(labels):
            findings.error(
                num.place,
                f"num has {len(num.content)} entries for {len(labels)} columns",
                hint="give the points of every column, or one number",
                code="samples",
            )
    if "bounds" in given:
        _check_bounds(generate.get("bounds"), method, labels, findings)


_EXAMPLES = {"num": "e.g. num: 1000", "bounds": "e.g. bounds: {X0: [0, 1]}, one entry for every column label"}


def _check_bounds(bounds: Entry, method: str, labels: list[str], findings: Findings) -> None:
    for name, pair in bounds.mapping.items():
        if name not in labels:
            findings.error(
                pair.key_place,
                f"bounds name {name!r}, which is no column of the samples",
                text=name,
                hint=allowed(name, labels, "columns"),
                code="bounds",
            )
        _check_pair(name, pair, method, findings)
    absent = [label for label in labels if label not in bounds.mapping]
    if absent and isinstance(bounds.content, dict):
        findings.error(
            bounds.key_place,
            f"bounds of {', '.join(absent)} are missing",
            text=absent[0],
            hint="every column needs [low, high]",
            code="bounds",
        )


def _check_pair(name: str, pair: Entry, method: str, findings: Findings) -> None:
    data = to_data(pair)
    if not isinstance(data, list) or len(data) != 2:
        return  # the model says so
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
        findings.error(
            pair.place,
            f"the bounds of {name} are not in order: {low:g} is not below {high:g}",
            text=shown(f"[{data[0]}, {data[1]}]"),
            hint="write [low, high]",
            code="bounds",
        )
