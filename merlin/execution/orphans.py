"""Ends the processes that an earlier run of the same workspace left on this host."""

from __future__ import annotations

import socket
from pathlib import Path

from merlin.base.processes import Process, all_sessions, works_in
from merlin.execution.conductor import CONTROLLER, UPDATER
from merlin.execution.job_folder import WORKER_PREFIX
from merlin.execution.sessions import kill_session
from merlin.ledger.format import Writer
from merlin.ledger.segments import segments
from merlin.workspace.directory import Workspace

_CLOCK_SLACK_S = 2.0  # between the clocks of the header and of the kernel


def kill_orphans(workspace: Workspace) -> list[int]:
    """Kill the sessions of workers whose command has ended; returns the process ids of their leaders.

    Call this with the workspace locked, so that no run is alive, and before the ledger is read, so that nothing is
    appended afterwards. The system reuses process ids. A session is ours only if its leader started before the
    segment's header was written, or, without a leader, if a member works inside the workspace.
    """
    host = socket.gethostname()
    writers = [w for _, header in segments(workspace.ledger_dir) for w in header.writers]
    alive = all_sessions() if writers else {}
    killed: list[int] = []
    for writer in writers:
        if writer.host != host or writer.worker in (CONTROLLER, UPDATER) or writer.pid in killed:
            continue
        if writer.worker.startswith(WORKER_PREFIX):  # a batch job: the run goes on with it
            continue
        if _is_ours(writer, alive.get(writer.pid, []), workspace.path):
            kill_session(writer.pid)
            killed.append(writer.pid)
    return killed


def _is_ours(writer: Writer, members: list[Process], root: Path) -> bool:
    for member in members:
        if member.pid == writer.pid:
            return member.started <= writer.started + _CLOCK_SLACK_S
    return any(works_in(member.pid, root) for member in members)
