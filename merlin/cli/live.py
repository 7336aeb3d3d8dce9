"""A snapshot that knows what workers on other machines do, if the servers can be asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merlin.errors import ConfigError, ExecutionError

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.status.snapshot import Crew, Snapshot
    from merlin.workspace.directory import Workspace


@dataclass(frozen=True, slots=True)
class Live:
    """How far a study is, and what only the servers know."""

    snapshot: Snapshot
    idle_queues: tuple[str, ...]  # with tasks that could run, and no worker
    note: str  # that the servers of a published study could not be asked, or ""


def live_snapshot(workspace: Workspace) -> Live:
    """The snapshot, with what the servers know of a published study."""
    from merlin.config.load import require_config
    from merlin.ledger.replay import replay
    from merlin.status.live import is_live
    from merlin.status.snapshot import is_published, snapshot_of

    state = replay(workspace.ledger_dir, workspace.plan)
    crew, note = None, ""
    if is_published(state):
        try:
            crew = ask_crew(workspace, require_config())
        except (ConfigError, ExecutionError) as error:
            note = f"what runs now is not known: {error}"
    live = crew is not None or is_live(workspace)
    snapshot = snapshot_of(workspace, state, live, time.time(), crew=crew)
    return Live(snapshot, () if crew is None else crew.idle_queues, note)


def ask_crew(workspace: Workspace, config: Config) -> Crew | None:
    """The workers of the study; None if it does not run. Raises ExecutionError if Redis cannot be asked."""
    from merlin.cli.watch import idle_queues
    from merlin.execution.distributed.launch import plain_queue
    from merlin.status.snapshot import Crew
    from merlin.views.published import StudyView

    view = StudyView(workspace, config)
    view.update()
    if view.state()[0] != "running":
        return None
    all_workers = view.workers()
    queues = {config.queue_name(i.queue) for i in workspace.plan.instances}
    workers = [w for w in all_workers if queues & set(w.queues)]
    running: dict[str, int] = {}
    for chunk in (c for w in workers for c in w.running if c.study == workspace.plan.study_id):
        running[chunk.instance] = running.get(chunk.instance, 0) + 1
    served = {plain_queue(config, queue) for worker in workers for queue in worker.queues}
    return Crew(
        num_workers=sum(w.concurrency for w in workers),
        running=running,
        idle_queues=idle_queues(workspace.plan, view.counts(all_workers), served),
    )
