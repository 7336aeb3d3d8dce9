"""Checks that look at more than one value."""

from __future__ import annotations

from merlin.spec.expand import Expansion
from merlin.spec.findings import Findings, Source
from merlin.spec.tree import Entry


def lint(source: Source, tree: Entry, expansion: Expansion, findings: Findings) -> None:
    """Report everything that is wrong although each value alone is right."""
