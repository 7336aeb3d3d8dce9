"""A chunk in words, and what a worker process has written into the ledger about its chunk."""

from __future__ import annotations

from logging import Logger

from merlin.errors import LedgerError
from merlin.ledger.entries import runs_of
from merlin.ledger.replay import Replay
from merlin.plan.pieces import Run, clip, pieces_of
from merlin.plan.tasks import NO_OUTCOME, Chunk
from merlin.workspace.directory import Workspace


def described(chunk: Chunk) -> str:
    """A chunk, for people."""
    return f"tasks [{chunk.lo}, {chunk.hi}) of {chunk.instance}"


def recorded_outcomes(
    workspace: Workspace, chunk: Chunk, log: Logger, *, session: str, worker: str, prefix: str
) -> tuple[Run, ...]:
    """The outcomes that `worker` has recorded in a run; `prefix` of its segments, if they are known.

    On the machine of the worker they are visible at once. If the ledger cannot be read, `log` gets a warning, and there
    are none: the study's owner reads the ledger, too.
    """
    try:
        found = Replay(workspace.ledger_dir, workspace.plan, prefix=prefix)
        ours = [e for e in found.entries(chunk.instance) if e.writer.session == session]
        ours = [e for e in ours if e.writer.worker == worker and e.header.attempt >= chunk.attempt]
        done = [piece for _, runs in runs_of(ours) for piece in clip(runs, pieces_of(chunk))]
    except LedgerError as error:
        log.warning("%s", error)
        return ()
    return tuple(piece for piece in done if piece[2] != NO_OUTCOME)
