"""How a run ended: everything that is reported then, read back from the ledger and the data sets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from merlin.execution.events import RunSummary
from merlin.ledger.replay import replay
from merlin.plan.outcome_counts import summed
from merlin.shards.format.counts import Counts
from merlin.status.snapshot import take_snapshot
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.status.failures import FailureGroup

MAX_GROUPS = 3  # of failures
EXIT_INTERRUPTED = 130


class StepReport(Struct, frozen=True, kw_only=True):
    """The tasks of a step by outcome."""

    step: str
    planned: int
    ok: int
    failed: int
    skipped: int
    missing: int
    on_failed_input: int


class DataSetReport(Struct, frozen=True, kw_only=True):
    """A finished data set."""

    path: str
    line: str  # what it is, in words
    rows: int
    samples: Counts
    shards: int
    size_bytes: int
    fields: Sequence[str]
    digest: str


class RunReport(Struct, frozen=True, kw_only=True):
    """How a run ended, as `merlin run --json` prints it."""

    workspace: str
    name: str
    exit_code: int  # 0: every task ended ok; 130: it was interrupted; else 1
    seconds: float
    stop_reason: str  # "" when nothing stopped it
    planned: int
    ok: int
    failed: int
    skipped: int
    missing: int
    on_failed_input: int
    steps: Sequence[StepReport]
    failures: Sequence[FailureGroup]  # of tasks, the largest ones
    data_sets: Sequence[DataSetReport]
    note: str | UnsetType = UNSET  # why nothing was run, if that is so


def report_of(workspace: Workspace, summary: RunSummary, steps: Collection[str] = ()) -> RunReport:
    """The report on a run that has ended so; on these `steps` alone, if there are any."""
    snapshot = take_snapshot(workspace)
    chosen = [step for step in snapshot.steps if not steps or step.step in steps]
    return RunReport(
        workspace=str(workspace.path),
        name=workspace.plan.name,
        exit_code=_exit_code(summary),
        seconds=summary.seconds,
        stop_reason="" if summary.is_success else summary.stop_reason,  # a stop may come when all is done
        **summed([summary]),
        on_failed_input=sum(step.on_failed_input for step in chosen),
        steps=tuple(
            StepReport(step=step.step, **summed([step]), on_failed_input=step.on_failed_input)
            for step in chosen
        ),
        failures=_failures(workspace, steps) if summary.failed else (),
        data_sets=tuple(_data_set(Path(found.path)) for found in snapshot.data_sets),
    )


def report_of_nothing(workspace: Workspace, why: str) -> RunReport:
    """The report if nothing was run, and why."""
    totals = summed([take_snapshot(workspace).totals])
    summary = RunSummary(**totals, stop_reason="", seconds=0.0, per_step={})
    return replace(report_of(workspace, summary), note=why)


def run_seconds(workspace: Workspace) -> float:
    """How long the last run took, from its start to its last record."""
    state = replay(workspace.ledger_dir, workspace.plan)
    starts = [event.time for event in state.events() if event.kind == "run_started" and event.time]
    ended = take_snapshot(workspace).ended
    return max(0.0, ended - starts[-1]) if starts and ended else 0.0


def _exit_code(summary: RunSummary) -> int:
    from merlin.execution.embedded import INTERRUPTED  # heavy, and a study on workers ends without it

    if summary.is_success:
        return 0
    return EXIT_INTERRUPTED if summary.stop_reason == INTERRUPTED else 1


def _failures(workspace: Workspace, steps: Collection[str]) -> Sequence[FailureGroup]:
    from merlin.status.failures import group_failures  # with numpy, and most runs have no failures

    return group_failures(workspace, steps=steps, with_ranges=False)[:MAX_GROUPS]


def _data_set(folder: Path) -> DataSetReport:
    from merlin.shards.describe import describe  # with HDF5, and not every study has a data set

    facts = describe(folder)
    return DataSetReport(
        path=str(folder),
        line=facts.line,
        rows=facts.data.num_rows,
        samples=facts.data.counts,
        shards=len(facts.data.shards),
        size_bytes=facts.data.size_bytes,
        fields=[field.info.name for field in facts.fields],
        digest=facts.data.content_digest,
    )
