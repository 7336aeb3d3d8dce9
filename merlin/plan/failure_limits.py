"""When failures stop a study, and when lost workers fail a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from merlin.plan.pieces import Run, clip, pieces_of
from merlin.plan.plan import Plan, StepInstance
from merlin.plan.runs import RunMap
from merlin.plan.task_states import OK, SOFT_FAILED, InstanceState, build_states
from merlin.plan.tasks import FAILURES, Chunk

LOSS_LIMIT = 10  # a task that was alone in its chunk when its worker was lost, so many times, has failed


def has_failures(chunk: Chunk, runs: Iterable[Run]) -> bool:
    """True if tasks of the chunk as it was handed out have failed, also tasks that had ended when it was adopted."""
    return any(outcome in FAILURES for _, _, outcome in clip(runs, pieces_of(chunk)))


def reason_to_stop(state: InstanceState, note: str, *, is_canary_spared: bool = False) -> str:
    """Why nothing new may start after a failure: the canary or `max_failures`; "" if it may.

    The canary looks for a step that cannot work at all; a task that chose to fail shows that its step does.
    """
    instance, num_failed = state.instance, state.num_failed
    because = f"; for example, {note}" if note else ""
    works = state.num[OK] or state.num[SOFT_FAILED]
    has_canary = 0 < instance.canary < instance.num_tasks and not is_canary_spared
    if has_canary and num_failed >= instance.canary and not works:
        return f"canary: the first {num_failed} tasks of step '{instance.id}' all failed{because}"
    if instance.max_failures is None:
        return ""
    is_share = 0 < instance.max_failures < 1
    if num_failed <= instance.max_failures * (instance.num_tasks if is_share else 1):
        return ""
    limit = f"{100 * instance.max_failures:.3g}%" if is_share else f"{instance.max_failures:g}"
    return (
        f"max_failures: {num_failed} of {instance.num_tasks} tasks of step '{instance.id}' failed, "
        f"{limit} are allowed{because}"
    )


def limit_reached(plan: Plan, outcomes: Mapping[str, RunMap]) -> str:
    """Why the next failure of a step that has tasks left stops the study; "" if none does. `outcomes` by instance."""
    states = build_states(plan, outcomes).values()
    return next(filter(None, (reason_to_stop(state, "") for state in states if not state.is_ended)), "")


def with_max_failures(plan: Plan, max_failures: float) -> Plan:
    """The plan with another limit for the steps that have one."""
    instances = (
        i if i.max_failures is None else replace(i, max_failures=max_failures) for i in plan.instances
    )
    return replace(plan, instances=tuple(instances))


def cause_of_loss(instance: StepInstance, deaths: int, signal: str, infrastructure: bool) -> str:
    """Why a task has failed whose worker was lost so often; "" if it may run again.

    With `infrastructure`, the workers were not killed by the task.
    """
    if deaths < (LOSS_LIMIT if infrastructure else instance.crash_limit):
        return ""
    times = "once" if deaths == 1 else f"{deaths} times"
    because = f" ({signal})" if signal else ""
    what = "its worker was lost" if infrastructure else "killed its worker"
    return f"{what} {times} when it ran alone{because}"


def cause_of_overrun(times: int, walltime: str) -> str:
    """Why a task has failed that the end of its job's walltime cut off so often."""
    often = "once" if times == 1 else f"{times} times"
    limit = f" of {walltime}" if walltime else ""
    return f"the walltime{limit} of its job was over {often} while it ran; give the step a longer walltime"
