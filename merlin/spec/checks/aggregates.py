"""Aggregate steps: where they collect from, and whether each field can be what it says."""

from __future__ import annotations

from merlin.spec.checks.steps import StepGraph
from merlin.spec.defaults import funnel_base
from merlin.spec.findings import Findings, allowed
from merlin.spec.scalars import Problem, to_float
from merlin.spec.tree import Entry, to_data

DTYPES = (
    *("float64", "float32", "float16", "int64", "int32", "int16", "int8"),
    *("uint64", "uint32", "uint16", "uint8", "bool", "complex64", "complex128"),
)
_AXES = {"scalar": (0, 0), "text": (0, 0), "series": (1, 2), "image": (2, 3), "volume": (3, 4)}
_SHAPES = {"series": "[128]", "image": "[64, 64] or [64, 64, 4]", "volume": "[32, 32, 32]"}


def check_aggregates(tree: Entry, graph: StepGraph, findings: Findings) -> None:
    """Everything about aggregate steps that needs more than one value."""
    for name, step in graph.steps.items():
        block = step.get("run", "aggregate")
        if not block.mapping:
            continue
        source = _check_source(name, step, graph, findings)
        fields = block.get("fields")
        if isinstance(fields.content, dict) and not fields.content:
            findings.error(fields.key_place, f"aggregate of step {name!r} has no fields", code="empty")
        for field_name, field in fields.mapping.items():
            _check_field(field_name, field, graph.kind(source), source, findings)
        _check_splits(block.get("splits"), findings)


def _check_source(name: str, step: Entry, graph: StepGraph, findings: Findings) -> str:
    depends = [funnel_base(item.text) for item in step.get("run", "depends").items]
    block = step.get("run", "aggregate")
    entry = block.get("from")
    if entry.is_null:
        if len(set(depends)) != 1:
            findings.error(
                block.key_place,
                f"aggregate of step {name!r} does not say from which step it collects",
                hint="add from: <step>, and that step to depends",
                code="aggregate-from",
            )
            return ""
        source, place = depends[0], step.get("run", "depends").place
    else:
        source, place = funnel_base(entry.text), entry.place
        if source not in depends:
            exists = source in graph.steps
            findings.error(
                place,
                f"aggregate of step {name!r} collects from {source!r}, which is not in its depends",
                text=entry.text,
                hint=f"add depends: [{source}]" if exists else allowed(source, depends, "in depends"),
                code="aggregate-from",
            )
    if graph.kind(source) == "aggregate":
        findings.error(
            place,
            f"step {name!r} collects from {source!r}, which is an aggregate itself",
            text=source,
            hint="collect from the step that makes the outputs",
            code="aggregate-from",
        )
    return source


def _check_field(name: str, field: Entry, source_kind: str, source: str, findings: Findings) -> None:
    if "/" in name or name in (".", "..", ""):
        findings.error(field.key_place, f"{name!r} cannot name a field", text=name, code="bad-name")
    _check_origin(name, field, source_kind, source, findings)
    dtype = field.get("dtype")
    if dtype.text and dtype.text not in DTYPES:
        findings.error(
            dtype.place,
            f"field {name}: {dtype.text!r} is no type of a field",
            text=dtype.text,
            hint=allowed(dtype.text, DTYPES, "types"),
            code="dtype",
        )
    _check_shape(name, field, findings)


def _check_origin(name: str, field: Entry, source_kind: str, source: str, findings: Findings) -> None:
    file, output, regex = field.get("file"), field.get("output"), field.get("regex")
    key = next((field.get(word) for word in ("key", "path", "column") if word in field.mapping), None)
    if not file.is_null and not output.is_null:
        findings.error(
            output.key_place,
            f"field {name} has both file and output",
            text="output",
            hint="file is for cmd steps, output for function steps",
            code="field-source",
        )
    elif source_kind == "cmd" and file.is_null:
        findings.error(
            field.key_place,
            f"field {name} does not say which file of step {source!r} holds it",
            text=name,
            hint="e.g. file: out.json with key: energy",
            code="field-source",
        )
    elif source_kind == "function" and not file.is_null:
        findings.error(
            file.key_place,
            f"field {name} names a file, but {source!r} is a function step, which returns arrays",
            text="file",
            hint=f"e.g. output: {name}",
            code="field-source",
        )
    for entry, word in ((regex, "regex"), (key, "key")):
        if entry is not None and not entry.is_null and file.is_null:
            findings.error(
                entry.key_place,
                f"field {name}: {word} needs a file to look in",
                text=word,
                code="field-source",
            )
    if key is not None and not key.is_null and not regex.is_null:
        findings.error(
            regex.key_place,
            f"field {name} has both regex and a key",
            text="regex",
            hint="regex is for text files; key for JSON, .npz, CSV and HDF5",
            code="field-source",
        )


def _check_shape(name: str, field: Entry, findings: Findings) -> None:
    kind = field.get("kind").text or "scalar"
    if kind not in _AXES:
        return  # the model says so
    shape, axes = field.get("shape"), field.get("axes")
    num = len(shape.items) if not shape.is_null else 0
    low, high = _AXES[kind]
    if not low <= num <= high:
        wanted = f"e.g. shape: {_SHAPES[kind]}" if kind in _SHAPES else f"leave shape out for {kind}"
        findings.error(
            shape.place if num else field.key_place,
            f"field {name} is of kind {kind}, and its shape has {num} axes",
            text=name,
            hint=wanted,
            code="shape",
        )
    if not axes.is_null and len(axes.items) != num:
        findings.error(
            axes.place,
            f"field {name} names {len(axes.items)} axes, but its shape has {num}",
            text=name,
            code="shape",
        )


def _check_splits(splits: Entry, findings: Findings) -> None:
    if not splits.mapping:
        return
    total = 0.0
    for name, item in splits.mapping.items():
        try:
            fraction = to_float(to_data(item))
        except Problem:
            return  # the model says so
        if not 0 <= fraction <= 1:
            findings.error(
                item.place, f"split {name} is {fraction:g}", text=item.text, hint="0 to 1", code="splits"
            )
        total += fraction
    if abs(total - 1) > 1e-6:
        findings.error(
            splits.key_place,
            f"splits sum to {total:g}",
            text="splits",
            hint="they must sum to 1",
            code="splits",
        )
