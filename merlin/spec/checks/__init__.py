"""Checks that look at more than one value of a spec; one file for each part of it.

They read the tree, not the model, so that they still work when other parts of the spec are malformed.
"""

from __future__ import annotations

from merlin.base.document.findings import Findings, SourceText
from merlin.base.document.tree import Entry
from merlin.spec.checks.aggregates import check_aggregates
from merlin.spec.checks.notify import check_notify
from merlin.spec.checks.parameters import check_parameters
from merlin.spec.checks.samples import check_samples
from merlin.spec.checks.steps import StepGraph, check_steps
from merlin.spec.checks.surroundings import check_surroundings
from merlin.spec.checks.tokens import check_tokens
from merlin.spec.expand import Expansion


def check(
    source: SourceText,
    tree: Entry,
    expansion: Expansion,
    findings: Findings,
    *,
    allow_undefined: bool,
) -> None:
    """Report everything that is wrong even though each value alone is right."""
    graph = StepGraph.of(expansion.tree)
    check_steps(expansion.tree, graph, findings)
    check_parameters(expansion, findings)
    check_samples(expansion, findings)
    check_aggregates(source, expansion.tree, graph, findings)
    check_surroundings(expansion.tree, graph, findings)
    check_notify(expansion, findings)
    check_tokens(source, tree, expansion, graph, findings, allow_undefined=allow_undefined)
