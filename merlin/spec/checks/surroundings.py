"""Blocks around the study: its name, workers, batch."""

from __future__ import annotations

from merlin.spec.checks.steps import StepGraph
from merlin.spec.findings import Findings, allowed, did_you_mean
from merlin.spec.tree import Entry


def check_surroundings(tree: Entry, graph: StepGraph, findings: Findings) -> None:
    """The study's name, the steps that workers name, and keys of batch that look like slips."""
    from merlin.spec.model import Batch  # see load.check_spec

    name = tree.get("description", "name")
    if "/" in name.text:
        findings.error(
            name.place,
            f"the study's name {name.text!r} has a '/' in it, and its workspace is called so",
            text=name.text,
            hint="set the directory with the variable OUTPUT_PATH",
            code="bad-name",
        )
    for worker_name, worker in tree.get("merlin", "resources", "workers").mapping.items():
        for item in worker.get("steps").items:
            if item.text and item.text != "all" and item.text not in graph.steps:
                findings.error(
                    item.place,
                    f"worker {worker_name!r} serves step {item.text!r}, which does not exist",
                    text=item.text,
                    hint=allowed(item.text, [*graph.steps, "all"], "steps"),
                    code="missing-step",
                )
    for key, item in tree.get("batch").mapping.items():
        if key not in Batch.model_fields and (hint := did_you_mean(key, Batch.model_fields)):
            findings.warning(
                item.key_place,
                f"key {key!r} in batch has no meaning here",
                text=key,
                hint=hint,
                code="unknown-key",
            )
