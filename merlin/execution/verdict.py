"""Decides what an exit code means for a task. Pure."""

from __future__ import annotations

from msgspec import Struct

from merlin.base.text import count
from merlin.execution.shell import signal_name
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import Chunk, Outcome, ReturnCode

_NAMED: dict[int, str] = {
    ReturnCode.SOFT_FAIL: "soft failure",
    ReturnCode.HARD_FAIL: "hard failure",
    ReturnCode.RAISE_ERROR: "error raised by the step",
}
_SHELLS = {126: "command cannot be executed", 127: "command not found"}


class Verdict(Struct, frozen=True):
    """How a task ended, or, if `outcome` is None, how it runs again."""

    outcome: Outcome | None
    cause: str = ""
    stop: str = ""
    use_restart: bool = False
    code: int | None = None  # recorded in place of the task's own exit code


_OK = Verdict(Outcome.OK)


def judge(instance: StepInstance, chunk: Chunk, code: int, cause: str = "") -> Verdict:
    """The verdict on an exit code; `cause` is set if something else made the task fail, such as a timeout."""
    if code == ReturnCode.SUCCESS and not cause:
        return _OK
    if cause:  # the script's own exit code does not count then
        return Verdict(Outcome.FAILED, cause, code=1 if code == ReturnCode.SOFT_FAIL else None)
    if code < 0:
        return Verdict(Outcome.FAILED, f"killed by {signal_name(-code)}")
    if code == ReturnCode.DRY_SUCCESS:
        return _OK
    if code == ReturnCode.STOP_WORKERS:
        return Verdict(Outcome.OK, stop="stop_workers")
    if code in (ReturnCode.RESTART, ReturnCode.RETRY):
        return _retry(instance, chunk, code)
    stop = "hard_fail" if code == ReturnCode.HARD_FAIL else ""
    return Verdict(Outcome.FAILED, _describe(code), stop)


def _describe(code: int) -> str:
    if code in _SHELLS:
        return f"exit code {code} ({_SHELLS[code]})"
    if code in _NAMED:
        return f"{_NAMED[code]} (exit code {code})"
    return f"exit code {code}"


def _retry(instance: StepInstance, chunk: Chunk, code: int) -> Verdict:
    restart = code == ReturnCode.RESTART
    if chunk.retries >= instance.max_retries:
        what = "restarted" if restart else "retried"
        return Verdict(
            Outcome.FAILED,
            f"asked to be {what} (exit code {code}) after {count(chunk.retries, 'retry', 'retries')}; "
            f"max_retries is {instance.max_retries}",
            code=ReturnCode.SOFT_FAIL,  # the steps after it run, as in upstream Merlin
        )
    return Verdict(None, use_restart=restart)
