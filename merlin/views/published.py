"""A published study as commands see it: what the ledger says, who works on it, and whether Redis holds it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.registry import WorkerInfo
from merlin.ledger.replay import Replay, replay
from merlin.plan.schedule import Counts, Scheduler
from merlin.status.snapshot import CANCELLED, end_of_run, is_published

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.workspace.directory import Workspace

State = Literal["running", "stopped", "complete", "gone", "dropped"]


class StudyView:
    """Looks again with every `update`. Methods raise ExecutionError if Redis does not answer."""

    def __init__(self, workspace: Workspace, config: Config) -> None:
        self._workspace, self._config = workspace, config
        backend = RedisBackend(config, make_client(config.backend), lease_s=0.0)
        self._mailbox, self._registry = backend.mailbox(workspace.plan.study_id), backend.registry
        self._replay: Replay | None = None
        self._counts: tuple[int, dict[str, Counts]] = (-1, {})

    def update(self) -> None:
        """Read what the ledger has got since."""
        if self._replay is None:
            self._replay = replay(self._workspace.ledger_dir, self._workspace.plan)
        else:
            self._replay.update()

    def state(self) -> tuple[State, str]:
        """And why the study ended before its end."""
        if self.is_complete:
            return "complete", ""
        assert self._replay is not None
        reason = end_of_run(self._replay)
        if reason is not None:
            return ("dropped" if reason == CANCELLED else "stopped"), reason
        return ("running" if self._mailbox.exists() else "gone"), ""

    @property
    def has_ended(self) -> bool:
        """The ledger says so; its owner writes that down soon after the last outcome."""
        assert self._replay is not None
        return not is_published(self._replay)

    @property
    def is_complete(self) -> bool:
        """Every task has an outcome."""
        return not any(counts.missing for counts in self._of_ledger().values())

    def num_held(self) -> int:
        """Chunks that workers hold."""
        return self._mailbox.num_held()

    def workers(self) -> list[WorkerInfo]:
        """The live workers of all studies."""
        return self._registry.workers()

    def counts(self, workers: list[WorkerInfo]) -> dict[str, Counts]:
        """Tasks by state, per step instance; `running` as these workers told it."""
        counts = dict(self._of_ledger())
        for chunk in (c for w in workers for c in w.running if c.study == self._workspace.plan.study_id):
            if (have := counts.get(chunk.instance)) is not None:
                num = min(chunk.hi - chunk.lo, have.ready)
                counts[chunk.instance] = replace(have, ready=have.ready - num, running=have.running + num)
        return counts

    def _of_ledger(self) -> dict[str, Counts]:
        found = self._replay
        assert found is not None, "update comes first"
        if self._counts[0] != found.num_records:
            scheduler = Scheduler(self._workspace.plan, found.outcomes, num_workers=1)
            self._counts = found.num_records, scheduler.counts()
        return self._counts[1]
