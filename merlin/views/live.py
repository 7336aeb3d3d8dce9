"""A snapshot of a study that also knows what workers on other machines do, if the servers can be asked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from merlin.errors import ConfigError, ExecutionError, WorkspaceError
from merlin.execution.job_counts import StepJobCounts, count_jobs
from merlin.execution.job_folder import all_jobs
from merlin.ledger.replay import replay
from merlin.status.live import is_live
from merlin.status.snapshot import LiveWorkers, Snapshot, is_published, snapshot_of
from merlin.views.ways_to_start import ways_to_start
from merlin.workspace.directory import Workspace, shown_together

if TYPE_CHECKING:
    from merlin.config.model import Config


@dataclass(frozen=True, slots=True)
class LiveStudy:
    """How far a study is, and what only the servers know."""

    snapshot: Snapshot
    idle_queues: tuple[str, ...]  # with tasks that could run, and no worker
    note: str  # that the servers of a published study could not be asked, or ""
    start: str  # the commands that start workers
    jobs: tuple[StepJobCounts, ...] = ()  # of steps that have batch jobs of their own


def live_study(workspace: Workspace) -> LiveStudy:
    """The snapshot, with what the servers know of a published study."""
    state = replay(workspace.ledger_dir, workspace.plan)
    workers, note = None, ""
    if is_published(state):
        from merlin.config.load import require_config  # heavy: pydantic

        try:
            workers = ask_workers(workspace, require_config())
        except (ConfigError, ExecutionError) as error:
            note = f"what runs now is not known: {error}"
    live = workers is not None or is_live(workspace)
    snapshot = snapshot_of(workspace, state, live, time.time(), workers=workers)
    jobs = tuple(count_jobs(all_jobs(workspace)))
    idle = () if workers is None else workers.idle_queues
    return LiveStudy(snapshot, idle, note, ways_to_start(workspace.plan, workspace.path), jobs)


def ask_workers(workspace: Workspace, config: Config) -> LiveWorkers | None:
    """The workers of the study; None if it does not run. Raises ExecutionError if Redis cannot be asked."""
    from merlin.views.published import PublishedStudy  # studies of this machine do not need it

    return PublishedStudy(workspace, config).live_workers()


def published_members(workspace: Workspace) -> list[Workspace]:
    """Those of a study and its extensions that workers have; the study itself if there are none.

    Raises WorkspaceError if a command runs one of them itself: Ctrl-C there is the way to end it.
    """
    studies = shown_together(workspace)
    found = [study for study in studies if is_published(replay(study.ledger_dir, study.plan))]
    for study in found or studies[:1]:
        if is_live(study):
            owner = (study.info / "lock").read_text("utf-8", "replace").strip()
            raise WorkspaceError(
                f"{study.path} is run by a command of its own ({owner}), not by workers; press Ctrl-C there, "
                "or send it SIGTERM"
            )
    return found or studies[:1]
