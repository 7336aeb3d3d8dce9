"""Who works on a followed study: its workers, and which process decides what runs."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from merlin.base.text import short_name
from merlin.status.live import holder_of
from merlin.status.snapshot import EXECUTOR
from merlin.views.at_work import WorkerLine, worker_line
from merlin.views.local_workers import local_workers
from merlin.views.queues import served_queues
from merlin.views.study_ledgers import Member
from merlin.views.surroundings import ServerFacts


class Team(Struct, frozen=True, kw_only=True):
    """executor: local or workers, of the last run; "" if there was none."""

    executor: str = ""
    owner: str = ""  # the name of a worker, or the process that runs the study
    workers: tuple[WorkerLine, ...] = ()

    @property
    def num_slots(self) -> int:
        return sum(worker.slots for worker in self.workers if not worker.is_stopping)


def team_of(members: Sequence[Member], servers: ServerFacts | None, now: float) -> Team:
    """Who works on a study; `servers`: what they say of a study that workers have, else None."""
    for member in members:
        holder = holder_of(member.workspace, member.facts)
        if holder is not None:
            return Team(executor="local", owner=str(holder), workers=local_workers(member, now))
    if servers is not None:
        return _of_servers(members, servers)
    starts = [e for m in members for e in m.facts.events() if e.kind == "run_started"]
    if not starts:
        return Team()
    return Team(executor="workers" if starts[-1].data.get("executor") == EXECUTOR else "local")


def _of_servers(members: Sequence[Member], servers: ServerFacts) -> Team:
    if servers.config is None:
        return Team(executor="workers")
    queues = {instance.queue for member in members for instance in member.plan.instances}
    steps = {(m.plan.study_id, i.id): i.step for m in members for i in m.plan.instances}
    ours = [
        worker
        for worker in servers.workers
        if queues & served_queues(worker, servers.config)
        or any((chunk.study, chunk.instance) in steps for chunk in worker.running)
    ]
    owners = (servers.held[m.plan.study_id].owner for m in members if m.plan.study_id in servers.held)
    return Team(
        executor="workers",
        owner=next((short_name(owner) for owner in owners if owner), ""),
        workers=tuple(worker_line(worker, servers.config, steps) for worker in ours),
    )
