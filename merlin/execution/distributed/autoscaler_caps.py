"""The limits of autoscaling, as the spec and the user set them, and the steps that these leave no time for."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from merlin.base.document.scalars import Problem, to_seconds
from merlin.batch.autoscale import Caps
from merlin.errors import UsageError
from merlin.execution.distributed.wanted_jobs import JobOptions, nodes_of
from merlin.execution.distributed.worker_jobs import walltime_of
from merlin.execution.walltime import MARGIN_S
from merlin.spec.model import Autoscale, Batch


class GivenCaps(Struct, frozen=True, kw_only=True):
    """The limits that the command line gives; None or "" stands for the limit in the spec."""

    min_nodes: int | None = None
    max_nodes: int | None = None
    max_jobs: int | None = None
    backlog: str | None = None
    idle: str | None = None


def caps_of(batch: Batch, options: JobOptions, given: GivenCaps) -> Caps:
    """The limits of the command line, else of batch.autoscale, else of the batch block. Raises UsageError."""
    block = batch.autoscale or Autoscale()
    nodes = options.nodes or block.nodes or nodes_of(batch, options)
    most = given.max_nodes or block.max or nodes
    least = block.min if given.min_nodes is None else given.min_nodes
    if least > most:
        raise UsageError(f"at least {least} nodes and at most {most} exclude each other; see --min and --max")
    backlog_s = block.backlog if given.backlog is None else _seconds(given.backlog, "--backlog")
    return Caps(
        max_nodes=most,
        min_nodes=least,
        max_jobs=given.max_jobs or block.jobs,
        nodes_per_job=min(nodes, most),
        walltime_s=walltime_of(batch, options.walltime or block.walltime or ""),
        backlog_s=None if backlog_s is None else max(1.0, backlog_s),
        idle_s=block.idle if given.idle is None else _seconds(given.idle, "--idle"),
    )


def _seconds(text: str, option: str) -> float:
    try:
        return to_seconds(text)
    except Problem as problem:
        raise UsageError(f"{option}: {problem}") from None


def longest_task_s(caps: Caps) -> float:
    """What a task may take in the jobs; infinite if their walltime is not known."""
    return math.inf if caps.walltime_s is None else caps.walltime_s - MARGIN_S


def too_long_steps(needs_s: Mapping[str, float], caps: Caps) -> dict[str, float]:
    """Of the steps with what a worker must have left for them, those that no job would have the time for."""
    most_s = longest_task_s(caps)
    return {step: need_s for step, need_s in needs_s.items() if need_s > most_s}
