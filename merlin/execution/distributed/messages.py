"""What workers and owners write to each other, all of it sealed with the user's key.

==========  ==============================================================  ==========================
notice      which offer of which study waits, in a message of the broker    owner to any worker
chunk       what is to be run, in the offer and the lease                   owner to the worker that takes it
report      what has become of it, in the mailbox                           that worker to the owner
==========  ==============================================================  ==========================
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from merlin.config.seal import seal, unseal
from merlin.errors import ExecutionError, ForgedMessageError
from merlin.execution.wire import chunk_from_json, chunk_to_json, result_from_json, result_to_json
from merlin.study.owner import Report
from merlin.study.tasks import Chunk

VERSION = 2
MAX_NOTICE_CHARS = 32 * 1024  # in its wrapping twice as long, and workers refuse what is longer than that
MAX_BYTES = 16 * 1024 * 1024  # of a chunk or a report: every second task of many may be a hole
_NOTICE = ("study", "workspace", "plan", "session", "instance", "lease")
_SENSELESS = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """An offer, and where its study is."""

    study: str  # id
    workspace: str
    plan: str  # digest
    session: str  # of the run
    instance: str
    lo: int
    hi: int
    lease: str


def seal_notice(notice: Notice, key: bytes) -> dict[str, str]:
    """Raises ExecutionError if its names are too long for a message."""
    body: dict[str, Any] = {name: getattr(notice, name) for name in (*_NOTICE, "lo", "hi")}
    envelope = seal(body | {"v": VERSION}, key)
    if len(envelope["body"]) > MAX_NOTICE_CHARS:
        raise ExecutionError(
            f"no message has room for the names of step instance {notice.instance[:80]}… and {notice.workspace}: "
            "shorten them"
        )
    return envelope


def open_notice(envelope: object, key: bytes) -> Notice:
    """Raises ForgedMessageError."""
    body = unseal(envelope, key)
    if body.get("v") != VERSION:
        raise ForgedMessageError(f"a message of version {body.get('v')!r}; this worker knows {VERSION}")
    for name in _NOTICE:
        if not isinstance(body.get(name), str):
            raise ForgedMessageError(f"a message without {name}")
    if not all(isinstance(body.get(name), int) for name in ("lo", "hi")):
        raise ForgedMessageError("a message without its tasks")
    return Notice(**{name: body[name] for name in (*_NOTICE, "lo", "hi")})


def seal_chunk(chunk: Chunk, study: str, key: bytes) -> str:
    return json.dumps(seal({"study": study, "chunk": chunk_to_json(chunk)}, key, max_bytes=MAX_BYTES))


def open_chunk(text: str, study: str, lease: str, key: bytes) -> Chunk:
    """The chunk that was offered under a lease. Raises ForgedMessageError."""
    body = _open(text, study, key)
    try:
        chunk = chunk_from_json(body["chunk"])
    except _SENSELESS as error:
        raise ForgedMessageError("a chunk that makes no sense") from error
    if chunk.lease != lease:
        raise ForgedMessageError("the chunk of another lease")
    return chunk


def seal_report(report: Report, study: str, key: bytes) -> str:
    body: dict[str, Any] = {"study": study, "chunk": chunk_to_json(report.chunk), "worker": report.worker}
    body |= {name: value for name in _FLAGS if (value := getattr(report, name))}
    if report.result is not None:
        body["result"] = result_to_json(report.result)
    return json.dumps(seal(body, key, max_bytes=MAX_BYTES))


def open_report(text: str, study: str, lease: str, key: bytes) -> Report:
    """Raises ForgedMessageError."""
    body = _open(text, study, key)
    try:
        chunk = chunk_from_json(body["chunk"])
        result = result_from_json(chunk, body["result"]) if "result" in body else None
        flags = {name: body[name] for name in _FLAGS if name in body}
        report = Report(chunk=chunk, worker=str(body["worker"]), result=result, **flags)
    except (*_SENSELESS, ExecutionError) as error:
        raise ForgedMessageError("a report that makes no sense") from error
    if chunk.lease != lease:
        raise ForgedMessageError("a report on another lease")
    return report


_FLAGS = ("died", "is_infrastructure", "is_interrupted", "trouble")


def _open(text: str, study: str, key: bytes) -> dict[str, Any]:
    try:
        body = unseal(json.loads(text), key, max_bytes=MAX_BYTES)
    except (ValueError, RecursionError):
        raise ForgedMessageError("what is no sealed text") from None
    if body.get("study") != study:
        raise ForgedMessageError("a sealed text of another study")
    return body
