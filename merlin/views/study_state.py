"""Whether anybody works on a followed study."""

from __future__ import annotations

from merlin.errors import ExecutionError
from merlin.status.activity import NOBODY, Activity, LiveWorkers, of_silence, of_workers
from merlin.status.snapshot import is_published, local_activity
from merlin.views.serving import live_workers
from merlin.views.study_ledgers import Member
from merlin.views.surroundings import Surroundings
from merlin.views.ways_to_start import ways_to_start

_NOT_YET = ExecutionError("the servers have not answered yet")


def activity_of(
    member: Member, around: Surroundings, num_running_jobs: int, now: float
) -> tuple[Activity, LiveWorkers | None]:
    """Who works on a study or an extension. Servers are asked only if it is theirs and has work left."""
    activity = local_activity(member.workspace, member.facts, now)
    if activity.state != "none" or not member.num_missing or not is_published(member.facts):
        return activity, None
    facts, plan = around.servers(), member.plan
    if facts is None:
        return of_silence(_NOT_YET), None
    if facts.error is not None or facts.config is None:
        return of_silence(facts.error or _NOT_YET), None
    held = facts.held.get(plan.study_id)
    if held is None:
        return NOBODY, None
    workers = live_workers(plan, member.facts.counts(), list(facts.workers), list(held.work), facts.config)
    start = ways_to_start(plan, member.workspace.path)
    return of_workers(workers, num_running_jobs, start), workers
