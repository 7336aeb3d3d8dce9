"""The messages between workers and owners, all sealed with the user's key.

==========  ==============================================================  ==========================
notice      which offer of which study is open, in a message of the broker  owner to any worker
chunk       the tasks to run, in the offer and the lease                    owner to the worker that takes it
report      the outcome of the chunk, in the mailbox                        that worker to the owner
==========  ==============================================================  ==========================
"""

from __future__ import annotations

import json
from typing import TypeVar

from msgspec import Struct

from merlin.base.records import to_plain
from merlin.config.seal import seal, unseal
from merlin.errors import ExecutionError, ForgedMessageError
from merlin.execution.wire import received
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import Chunk

VERSION = 2
MAX_NOTICE_CHARS = 32 * 1024  # its envelope is twice as long; workers refuse longer messages
MAX_BYTES = 16 * 1024 * 1024  # of a chunk or a report; a chunk may have very many holes

T = TypeVar("T")


class Notice(Struct, frozen=True, kw_only=True):
    """An offer, and the place of its study."""

    v: int = VERSION
    study: str  # id
    workspace: str
    plan: str  # digest
    session: str  # of the run
    instance: str
    lo: int
    hi: int
    lease: str


class _Sealed(Struct, frozen=True, kw_only=True):
    """A chunk or a report, and its study."""

    study: str
    chunk: Chunk | None = None
    report: ChunkReport | None = None


def seal_notice(notice: Notice, key: bytes) -> dict[str, str]:
    """Seal a notice. Raises ExecutionError if its names are too long for a message."""
    envelope = seal(to_plain(notice), key)
    if len(envelope["body"]) > MAX_NOTICE_CHARS:
        raise ExecutionError(
            f"no message has room for the names of step instance {notice.instance[:80]}… and {notice.workspace}: "
            "shorten them"
        )
    return envelope


def open_notice(envelope: object, key: bytes) -> Notice:
    """Check the seal of a notice and decode it. Raises ForgedMessageError."""
    body = unseal(envelope, key)
    if body.get("v") != VERSION:
        raise ForgedMessageError(f"a message of version {body.get('v')!r}; this worker knows {VERSION}")
    return _as(body, Notice)


def seal_chunk(chunk: Chunk, study: str, key: bytes) -> str:
    return _seal(_Sealed(study=study, chunk=chunk), key)


def open_chunk(text: str, study: str, lease: str, key: bytes) -> Chunk:
    """The chunk that was offered under a lease. Raises ForgedMessageError."""
    chunk = _open(text, study, key).chunk
    if chunk is None or chunk.lease != lease:
        raise ForgedMessageError("the chunk of another lease")
    return chunk


def seal_report(report: ChunkReport, study: str, key: bytes) -> str:
    return _seal(_Sealed(study=study, report=report), key)


def open_report(text: str, study: str, lease: str, key: bytes) -> ChunkReport:
    """The report on a lease. Raises ForgedMessageError."""
    report = _open(text, study, key).report
    if report is None or report.chunk.lease != lease:
        raise ForgedMessageError("a report on another lease")
    return report


def _seal(record: _Sealed, key: bytes) -> str:
    return json.dumps(seal(to_plain(record), key, max_bytes=MAX_BYTES))


def _open(text: str, study: str, key: bytes) -> _Sealed:
    try:
        body = unseal(json.loads(text), key, max_bytes=MAX_BYTES)
    except (ValueError, RecursionError):
        raise ForgedMessageError("what is no sealed text") from None
    record = _as(body, _Sealed)
    if record.study != study:
        raise ForgedMessageError("a sealed text of another study")
    return record


def _as(body: object, kind: type[T]) -> T:
    try:
        return received(body, kind)
    except ExecutionError as error:
        raise ForgedMessageError("a sealed text that makes no sense") from error
