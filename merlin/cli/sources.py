"""Where `merlin monitor` looks: Redis for a study that was published, the ledger for a run without servers."""

from __future__ import annotations

import sys
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.text import count
from merlin.cli.watch import Look, State, idle_queues, sum_by_step
from merlin.errors import ExecutionError, MerlinError

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.registry import WorkerInfo
    from merlin.plan.schedule import Counts
    from merlin.status.snapshot import Snapshot
    from merlin.workspace.directory import Workspace

SETTLE_S = 6.0  # for the end of a study to be written down; an owner that was killed is replaced after 4
POLL_S = 0.1


class RedisSource:
    """A study that was published."""

    def __init__(self, workspace: Workspace, config: Config) -> None:
        from merlin.views.published import StudyView

        self._workspace, self._config = workspace, config
        self._view = StudyView(workspace, config)

    def look(self) -> Look:
        try:
            self._view.update()
            state, reason = self._view.state()
            workers = self._view.workers()
            counts, num_running = self._view.counts(workers), self._view.num_held()
        except ExecutionError as error:
            return Look(state="unreachable", per_step={}, reason=str(error))
        plan = self._workspace.plan
        served = self._served(workers)
        return Look(
            state=state,
            per_step=sum_by_step(plan, counts),
            num_workers=sum(bool(queues & {i.queue for i in plan.instances}) for queues in served),
            num_running=num_running,
            reason=reason,
            idle_queues=idle_queues(plan, counts, set().union(*served)) if state == "running" else (),
        )

    def _served(self, workers: list[WorkerInfo]) -> list[set[str]]:
        """Per live worker its queues, as in specs."""
        from merlin.execution.distributed.launch import plain_queue

        return [{plain_queue(self._config, q) for q in w.queues} for w in workers if not w.is_stopping]

    def settle(self) -> None:
        import time

        from merlin.execution.distributed.control import write_down_end

        until = time.monotonic() + SETTLE_S
        with suppress(ExecutionError):  # then a worker, or the next restart, will do it
            while not self._view.has_ended and self._view.is_complete and time.monotonic() < until:
                write_down_end(self._workspace, self._config)
                time.sleep(POLL_S)
                self._view.update()

    def republish(self) -> str:
        from merlin.execution.distributed.open_study import open_study

        opened = open_study(self._workspace, self._config)
        done = f", {opened.already_ok:,} tasks had ended ok" if opened.already_ok else ""
        return f"published with {count(opened.num_messages, 'message')}{done}"


@dataclass(frozen=True, slots=True)
class OnQueues:
    """A published study, and its steps on the queues that were asked about."""

    workspace: Workspace
    source: RedisSource
    steps: list[str]


def next_on_queues(config: Config, queues: Collection[str], seen: set[str]) -> OnQueues | None:
    """The oldest study of this user that has work left for `queues` (names in the spec), and whose id is not in `seen`.

    Those that were looked at are added to `seen`. A study that cannot be looked at is told and passed over.
    """
    from merlin.cli.servers import open_registry

    try:
        studies = open_registry(config).studies()
    except ExecutionError as error:
        print(f"cannot ask for other studies on the same queues: {error}", file=sys.stderr)
        return None
    for info in studies:
        if info.study_id in seen or not set(queues) & set(info.queues):
            continue
        seen.add(info.study_id)
        try:
            found = _with_work_left(Path(info.workspace), config, queues)
        except MerlinError as error:
            print(f"passed over, it uses the same queues: {error}", file=sys.stderr)
            continue
        if found is not None:
            return found
    return None


def _with_work_left(path: Path, config: Config, queues: Collection[str]) -> OnQueues | None:
    from merlin.workspace.directory import open_workspace

    workspace = open_workspace(path)
    source = RedisSource(workspace, config)
    steps = [i.step for i in workspace.plan.instances if i.queue in queues]
    look = source.look()
    is_open = look.state in ("running", "gone", "unreachable")
    has_work = not look.per_step or any(look.per_step[step].missing for step in steps)
    return OnQueues(workspace, source, steps) if is_open and has_work else None


class LedgerSource:
    """A study that a command runs on its own, here or on another machine of the file system."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def look(self) -> Look:
        from merlin.status.snapshot import take_snapshot

        snapshot = take_snapshot(self._workspace)
        ended: State = "stopped" if snapshot.totals.missing else "complete"
        return Look(
            state="running" if snapshot.state == "running" else ended,
            per_step=counts_of(snapshot),
            num_workers=snapshot.num_workers,
            reason=snapshot.stop_reason or "no run is alive",
        )

    def settle(self) -> None:
        pass

    def republish(self) -> str:
        raise AssertionError("a local run has no progress to lose")


def counts_of(snapshot: Snapshot) -> dict[str, Counts]:
    """What the ledger says, as if it were the progress."""
    from merlin.plan import schedule

    return {
        s.step: schedule.Counts(
            planned=s.planned, ok=s.ok, failed=s.failed, skipped=s.skipped, running=s.running,
            ready=s.missing - s.running, waiting=0, queued=0,
        )
        for s in snapshot.steps
    }  # fmt: skip
