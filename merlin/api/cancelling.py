"""Ending a study, whoever runs it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.locks import is_locked_by
from merlin.base.processes import catches
from merlin.errors import ExecutionError, WorkspaceError
from merlin.ledger.replay import replay
from merlin.status.live import holder_of
from merlin.status.run_events import is_open, pid_of_run
from merlin.status.snapshot import CANCELLED, is_published
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from merlin.execution.distributed.control import CancelReport

STOP_S = 60.0  # for a run on this machine to end its tasks and write down how they ended
_POLL_S = 0.1


def cancel_on_workers(
    study: Workspace, steps: tuple[str, ...] | None, note: Callable[[str], None]
) -> CancelReport:
    """End the study on the workers; if its command was killed, end the batch jobs that the command has left.

    Raises as `merlin.execution.distributed.control.cancel`.
    """
    from merlin.config.load import require_config
    from merlin.execution.distributed.control import CancelReport, cancel, cancel_step_jobs
    from merlin.execution.job_folder import all_jobs
    from merlin.execution.notices import tell_of_stop

    if all_jobs(study, given_up=True) and not is_published(replay(study.ledger_dir, study.plan)):
        return CancelReport(before=[], after=[], num_jobs=cancel_step_jobs(study, steps))
    report = cancel(study, require_config(), steps)
    if steps is None:
        tell_of_stop(study, CANCELLED, note)
    return report


def stop_run_here(study: Workspace) -> bool:
    """End the run of a study by another process of this machine: it ends its tasks, as after Ctrl-C.

    Returns False if none runs it.

    Raises:
        WorkspaceError: the run is on another machine, belongs to this process, or to another user, or the process does
            something else, such as an update, or would lose more than the run.
        ExecutionError: it has not ended within `STOP_S`.
    """
    state = replay(study.ledger_dir, study.plan)
    holder = holder_of(study, state)
    if holder is None:
        return False
    if not holder.is_here or holder.pid == os.getpid():
        where = f"on {holder.host}" if not holder.is_here else "in this process"
        raise WorkspaceError(f"{study.path} is run {where} (pid {holder.pid}); press Ctrl-C there")
    if pid_of_run(state) not in (None, holder.pid) or not catches(holder.pid, signal.SIGTERM):
        raise WorkspaceError(
            f"{study.path} is in use by process {holder.pid}, which does other work, too; stop it there"
        )
    try:
        _terminate(holder.pid, study.info / "lock")
    except ProcessLookupError:
        return True
    except PermissionError:
        raise WorkspaceError(f"{study.path} is run by process {holder.pid} of another user") from None
    until = time.monotonic() + STOP_S
    while is_locked_by(holder.pid, study.info / "lock"):
        if time.monotonic() > until:
            raise ExecutionError(
                f"the run of {study.path} by process {holder.pid} does not end; kill that process"
            )
        time.sleep(_POLL_S)
    return True


def _terminate(pid: int, lock: Path) -> None:
    """Send SIGTERM to the process that holds the lock, and to no other that has got its number meanwhile."""
    descriptor = os.pidfd_open(pid)
    try:
        if is_locked_by(pid, lock):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            signal.pidfd_send_signal(descriptor, signal.SIGCONT)  # a stopped process does not see SIGTERM
    finally:
        os.close(descriptor)


def end_runs_here(studies: Iterable[Workspace]) -> list[Workspace]:
    """End the runs of these studies by commands of this machine; returns the studies that had one.

    By its ledger such a run is open: a worker that publishes a study again holds the lock for a moment, too.

    Raises ExecutionError if one does not end, WorkspaceError if it belongs to another user.
    """
    return [study for study in studies if _is_run_here(study) and stop_run_here(study)]


def _is_run_here(study: Workspace) -> bool:
    state = replay(study.ledger_dir, study.plan)
    holder = holder_of(study, state) if is_open(state) else None
    return holder is not None and holder.is_here and holder.pid != os.getpid()


def cancel_study(study: Workspace, note: Callable[[str], None]) -> None:
    """End one workspace's run, on workers or by a process of this machine.

    Raises WorkspaceError if a command on another machine runs it, ExecutionError if something survives.
    """
    is_on_workers = is_published(replay(study.ledger_dir, study.plan))
    if not is_on_workers and stop_run_here(study):  # a worker that publishes it again holds the lock, too
        return
    left = cancel_on_workers(study, None, note).after
    if left:
        hosts = ", ".join(sorted({chunk.host for chunk in left}))
        raise ExecutionError(
            f"{len(left)} chunks of {study.path} may still run, on {hosts}; look there, then cancel again"
        )


def end_on_workers(studies: Iterable[Workspace], note: Callable[[str], None]) -> None:
    """End what workers run of a study and its extensions, to change it; what they have finished counts.

    Raises as `cancel_study`.
    """
    for study in studies:
        if is_published(replay(study.ledger_dir, study.plan)):
            cancel_study(study, note)
