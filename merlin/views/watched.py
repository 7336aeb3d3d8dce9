"""Where `merlin monitor` looks: Redis for a study that was published, the ledger for a run without servers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

from msgspec import Struct

from merlin.config.load import require_config
from merlin.config.model import Config
from merlin.errors import ExecutionError, MerlinError
from merlin.execution.distributed.connect import redis_client
from merlin.ledger.replay import replay
from merlin.plan.task_states import TaskCounts
from merlin.status.snapshot import is_published, take_snapshot
from merlin.views.published import PublishedStudy
from merlin.views.servers import open_registry
from merlin.views.watch import Look, State, WatchedStudy
from merlin.workspace.directory import Workspace, open_workspace


def watched_study(workspace: Workspace) -> WatchedStudy:
    """The study in Redis if it was published, else in its ledger.

    Raises:
        ConfigError: the study was published, and no broker is configured now.
        ExecutionError: the study was published, and Redis does not answer now.
    """
    if not is_published(replay(workspace.ledger_dir, workspace.plan)):
        return LocalStudy(workspace)
    config = require_config()
    redis_client(config).close()  # a server that is not there at all is better reported at once
    return PublishedStudy(workspace, config)


class LocalStudy(Struct, frozen=True):
    """A study that a command runs on its own, here or on another machine of the file system."""

    workspace: Workspace

    def look(self) -> Look:
        snapshot = take_snapshot(self.workspace)
        ended: State = "stopped" if snapshot.totals.missing else "complete"
        return Look(
            state="running" if snapshot.state in ("running", "stalled", "unknown") else ended,
            per_step={
                s.step: TaskCounts(
                    planned=s.planned, ok=s.ok, failed=s.failed, skipped=s.skipped, running=s.running,
                    ready=s.missing - s.running, waiting=0, queued=0,
                )
                for s in snapshot.steps
            },
            num_workers=snapshot.num_workers,
            reason=snapshot.state_reason or snapshot.stop_reason or "no run is alive",
        )  # fmt: skip

    def settle(self) -> None:
        pass

    def republish(self) -> str:
        raise AssertionError("a local run has no progress to lose")


class OnQueues(Struct, frozen=True):
    """A published study, and its steps on the queues that were asked about."""

    workspace: Workspace
    study: PublishedStudy
    steps: list[str]


def next_on_queues(
    config: Config, queues: Collection[str], seen: set[str], note: Callable[[str], object]
) -> OnQueues | None:
    """The oldest study of this user that has work left for `queues` (names in the spec), and whose id is not in `seen`.

    Those that were looked at are added to `seen`. A study that cannot be looked at is passed over with a `note`.
    """
    try:
        studies = open_registry(config).studies()
    except ExecutionError as error:
        note(f"cannot ask for other studies on the same queues: {error}")
        return None
    for info in studies:
        if info.study_id in seen or not set(queues) & set(info.queues):
            continue
        seen.add(info.study_id)
        try:
            found = _with_work_left(Path(info.workspace), config, queues)
        except MerlinError as error:
            note(f"passed over, it uses the same queues: {error}")
            continue
        if found is not None:
            return found
    return None


def _with_work_left(path: Path, config: Config, queues: Collection[str]) -> OnQueues | None:
    workspace = open_workspace(path)
    study = PublishedStudy(workspace, config)
    steps = [i.step for i in workspace.plan.instances if i.queue in queues]
    look = study.look()
    is_open = look.state in ("running", "gone", "unreachable")
    has_work = not look.per_step or any(look.per_step[step].missing for step in steps)
    return OnQueues(workspace, study, steps) if is_open and has_work else None
