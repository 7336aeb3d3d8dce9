"""The worker processes of a run on one machine, as their segments of the ledger show them."""

from __future__ import annotations

import os

from merlin.base.processes import read_process
from merlin.execution.conductor import CONTROLLER, UPDATER
from merlin.ledger.format import Writer
from merlin.ledger.session import session_start
from merlin.views.at_work import WorkerLine
from merlin.views.study_ledgers import Member


def local_workers(member: Member, now: float) -> tuple[WorkerLine, ...]:
    """The workers of the last run that this host sees alive; the ledger says what each ran only afterwards."""
    writers = [
        (writer, segment.path.name)
        for segment in member.state.segments
        if segment.header is not None and not segment.header.replaces
        for writer in segment.header.writers
    ]
    if not writers:
        return ()
    latest = max(session_start(writer.session, writer.started) for writer, _ in writers)
    ours = [
        (writer, name)
        for writer, name in writers
        if writer.worker not in (CONTROLLER, UPDATER)
        and session_start(writer.session, writer.started) == latest
        and _may_be_alive(writer)
    ]
    ours.sort(key=lambda found: found[0].worker)
    return tuple(_line(writer, member.facts.last_sign(name), now) for writer, name in ours)


def _may_be_alive(writer: Writer) -> bool:
    return writer.host != os.uname().nodename or read_process(writer.pid) is not None


def _line(writer: Writer, last_sign: float | None, now: float) -> WorkerLine:
    return WorkerLine(
        name=writer.worker,
        host=writer.host,
        slots=1,
        started=writer.started,
        age_s=max(0.0, now - max(writer.started, last_sign or 0.0)),
    )
