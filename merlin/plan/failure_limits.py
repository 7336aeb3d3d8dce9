"""When failures stop a study, and when lost workers fail a task."""

from __future__ import annotations

from collections.abc import Iterable

from merlin.plan.pieces import Run, clip, pieces_of
from merlin.plan.plan import StepInstance
from merlin.plan.task_states import OK, SOFT_FAILED, InstanceState
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
    because = f": {note}" if note else ""
    works = state.num[OK] or state.num[SOFT_FAILED]
    if (
        not is_canary_spared
        and instance.canary
        and instance.num_tasks > instance.canary <= num_failed
        and not works
    ):
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


def cause_of_loss(instance: StepInstance, deaths: int, signal: str, infrastructure: bool) -> str:
    """Why a task has failed whose worker was lost so often; "" if it may run again.

    With `infrastructure`, the workers were not killed by the task.
    """
    if deaths < (LOSS_LIMIT if infrastructure else instance.crash_limit):
        return ""
    times = "once" if deaths == 1 else f"{deaths} times"
    because = f" ({signal})" if signal else ""
    return (
        f"its worker was lost {times}{because}" if infrastructure else f"killed its worker {times}{because}"
    )


def cause_of_overrun(times: int, walltime: str) -> str:
    """Why a task has failed that the end of its job's walltime cut off so often."""
    often = "once" if times == 1 else f"{times} times"
    limit = f" of {walltime}" if walltime else ""
    return f"the walltime{limit} of its job was over {often} while it ran; give the step a longer walltime"
