"""Aggregate steps: where they collect from, their splits and their clean-up."""

from __future__ import annotations

from merlin.base.document.findings import Findings, SourceText, allowed
from merlin.base.document.tokens import find_tokens
from merlin.base.document.tree import Entry
from merlin.spec.checks.expressions import ExpressionChecker
from merlin.spec.checks.fields import FieldChecker, check_compression, check_level, is_true, shape_of
from merlin.spec.checks.splits import check_splits
from merlin.spec.checks.steps import StepGraph
from merlin.spec.defaults import funnel_base
from merlin.spec.expand import column_labels


def check_aggregates(source: SourceText, tree: Entry, graph: StepGraph, findings: Findings) -> None:
    """Everything about aggregate steps that needs more than one value."""
    labels, parameters = tuple(column_labels(tree)), tuple(tree.get("global.parameters").mapping)
    for name, step in graph.steps.items():
        block = step.get("run", "aggregate")
        if not block.mapping:
            continue
        collected = _check_source(name, step, graph, findings)
        fields = block.get("fields")
        if isinstance(fields.content, dict) and not fields.content:
            findings.error(fields.key_place, f"aggregate of step {name!r} has no fields", code="empty")
        checker = FieldChecker(collected, graph.kind(collected), findings, block.get("compression").text)
        for field_name, field in fields.mapping.items():
            checker.check(field_name, field)
        _check_taken_names(fields, findings)
        _warn_of_namesakes(fields, labels, parameters, findings)
        ExpressionChecker(source, findings, labels, parameters).check(block)
        what = f"aggregate of step {name!r}"
        if _compresses_some(fields):
            check_level(what, block, findings)
        else:
            check_compression(what, block, "", findings)
        check_splits(block.get("splits"), findings)
        if is_true(block.get("cleanup")):
            _check_cleanup(name, block.get("cleanup"), collected, graph, findings)


def _compresses_some(fields: Entry) -> bool:
    """Whether a field has a codec of its own, which takes shuffle and level from the aggregate."""
    members = [m for field in fields.mapping.values() for m in field.get("members").mapping.values()]
    return any(entry.get("compression").text for entry in (*fields.mapping.values(), *members))


def _check_taken_names(fields: Entry, findings: Findings) -> None:
    """The members of a graph are known as graph.member, which no other field may be called."""
    for graph, block in fields.mapping.items():
        for role in block.get("members").mapping:
            taken = fields.get(f"{graph}.{role}")
            if not taken.is_null:
                message = f"{graph}.{role} is a member of the graph {graph}"
                hint = "give the field another name"
                findings.error(taken.key_place, message, text=f"{graph}.{role}", hint=hint, code="bad-name")


def _warn_of_namesakes(
    fields: Entry, labels: tuple[str, ...], parameters: tuple[str, ...], findings: Findings
) -> None:
    """In queries of the data set, where case does not matter, a name of several columns means none of them."""
    others = {name.lower(): (name, "parameter", "param") for name in parameters}
    others |= {name.lower(): (name, "column of the samples", "input") for name in labels}
    for name, field in fields.mapping.items():
        is_scalar = shape_of(field) == (False, 0) and field.get("members").is_null
        if is_scalar and name.lower() in others:
            other, what, kind = others[name.lower()]
            message = f"field {name} and the {what} {other} have one name, as case does not matter in queries"
            hint = f"rename one, or write field_{name} and {kind}_{other} in queries of the data set"
            findings.warning(field.key_place, message, text=name, hint=hint, code="name-clash")


def _check_cleanup(name: str, entry: Entry, collected: str, graph: StepGraph, findings: Findings) -> None:
    """Clean-up removes files of shell steps, and keeps those that a step after the aggregate reads."""
    if graph.kind(collected) == "function":
        message = f"step {collected!r} is a function and leaves no files, so there is nothing to clean up"
        findings.warning(entry.key_place, message, text="cleanup", code="cleanup")
    for other, step in graph.steps.items():
        texts = [step.get("run", key).text for key in ("cmd", "restart")]
        reads = any(t.name == f"{collected}.workspace" for text in texts for t in find_tokens(text))
        if reads and name in graph.ancestors(other):
            message = (
                f"step {other!r} reads the files of {collected!r} after {name!r}, so none will be cleaned up"
            )
            hint = f"read the data set in step {other!r}, or leave cleanup out"
            findings.warning(entry.key_place, message, text="cleanup", hint=hint, code="cleanup")


def _check_source(name: str, step: Entry, graph: StepGraph, findings: Findings) -> str:
    depends = [funnel_base(item.text) for item in step.get("run", "depends").items]
    block = step.get("run", "aggregate")
    entry = block.get("from")
    if entry.is_null:
        if len(set(depends)) != 1:
            message = f"aggregate of step {name!r} does not say from which step it collects"
            hint = "add from: <step>, and that step to depends"
            findings.error(block.key_place, message, hint=hint, code="aggregate-from")
            return ""
        source, place = depends[0], step.get("run", "depends").place
    else:
        source, place = funnel_base(entry.text), entry.place
        if source not in depends:
            exists = source in graph.steps
            message = f"aggregate of step {name!r} collects from {source!r}, which is not in its depends"
            hint = f"add depends: [{source}]" if exists else allowed(source, depends, "in depends")
            findings.error(place, message, text=entry.text, hint=hint, code="aggregate-from")
    if graph.kind(source) == "aggregate":
        message = f"step {name!r} collects from {source!r}, which is an aggregate itself"
        hint = "collect from the step that makes the outputs"
        findings.error(place, message, text=source, hint=hint, code="aggregate-from")
    return source
