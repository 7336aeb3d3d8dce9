"""The splits of a data set, of an aggregate step or an import."""

from __future__ import annotations

from merlin.base.document.findings import Findings
from merlin.base.document.scalars import Problem, to_float
from merlin.base.document.tree import Entry, to_data


def check_splits(splits: Entry, findings: Findings) -> None:
    """Check that each split has a name and a fraction, and that the fractions sum to 1."""
    if not splits.mapping:
        return
    total = 0.0
    for name, item in splits.mapping.items():
        try:
            fraction = to_float(to_data(item))
        except Problem:
            return  # the model reports it
        if not name:
            findings.error(item.place, "a split has no name", hint="e.g. train", code="splits")
        if not 0 <= fraction <= 1:
            message = f"split {name} is {fraction:g}"
            findings.error(item.place, message, text=item.text, hint="0 to 1", code="splits")
        total += fraction
    if abs(total - 1) > 1e-6:
        message, hint = f"splits sum to {total:g}", "they must sum to 1"
        findings.error(splits.key_place, message, text="splits", hint=hint, code="splits")
