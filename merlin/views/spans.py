"""A study as spans of OpenTelemetry: the study, its step instances, and the chunks that workers have run.

They are read from the ledger afterwards, so a run takes no notice of them. The same study always gives the same ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Literal

from msgspec import Struct, field

from merlin import __version__
from merlin.views.record_stream import StreamedRecord, events_of, streamed_records
from merlin.workspace.directory import Workspace, shown_together

SERVICE = "merlin"
Value = str | int | float | bool


class Span(Struct, frozen=True, kw_only=True):
    """Something that took a while."""

    name: str
    trace_id: int  # 128 bits
    span_id: int  # 64 bits
    parent_id: int  # 0: it is the study itself
    start_ns: int  # since the epoch
    end_ns: int
    status: Literal["ok", "error", "unset"]
    attributes: Mapping[str, Value]


def resource_of(workspace: Workspace) -> dict[str, Value]:
    """What all spans of a study have in common."""
    return {
        "service.name": SERVICE,
        "service.version": __version__,
        "merlin.study": workspace.plan.name,
        "merlin.study_id": workspace.plan.study_id,
        "merlin.workspace": str(workspace.path),
    }


def spans_of(workspace: Workspace) -> Iterator[Span]:
    """All spans of a study and its extensions; those of chunks come as they are read."""
    trace = _id(16, "trace", workspace.plan.study_id)
    root = _id(8, "study", workspace.plan.study_id)
    total = _Times()
    for study in shown_together(workspace):
        top = root if study is workspace else _id(8, "study", study.plan.study_id)
        times = _Times()
        yield from _of_study(study, trace, top, times)
        for event in events_of(study):
            times.note(event.time or 0.0, event.time or 0.0)
        total.add(times)
        if top != root and times.is_known:
            yield _span(study.member, trace, top, root, times, {"merlin.extension": study.plan.extension})
    if total.is_known:
        tasks = sum(i.num_tasks for study in shown_together(workspace) for i in study.plan.instances)
        name = f"study {workspace.plan.name}"
        yield _span(name, trace, root, 0, total, {"merlin.planned": tasks})


class _Times(Struct):
    """The time from the first to the last of several chunks or instances, and how their tasks ended."""

    start: float = float("inf")
    end: float = 0.0
    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])  # ok, failed, skipped, interrupted

    @property
    def is_known(self) -> bool:
        return self.end > 0

    def note(self, start: float, end: float) -> None:
        if start > 0:
            self.start, self.end = min(self.start, start), max(self.end, end)

    def add(self, other: _Times) -> None:
        self.note(other.start if other.is_known else 0.0, other.end)
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]


def _of_study(study: Workspace, trace: int, top: int, times: _Times) -> Iterator[Span]:
    """The spans of chunks, then those of step instances."""
    study_id = study.plan.study_id
    ids = {instance.id: _id(8, "instance", study_id, instance.id) for instance in study.plan.instances}
    of_instances = {id: _Times() for id in ids}
    for record in streamed_records(study):
        have = of_instances[record.header.instance]
        have.note(record.header.started, record.header.ended)
        have.counts = [a + b for a, b in zip(have.counts, record.header.counts, strict=True)]
        yield _of_chunk(study, record, trace, ids[record.header.instance])
    for instance in study.plan.instances:
        have = of_instances[instance.id]
        if have.is_known:
            more: dict[str, Value] = {
                "merlin.step": instance.step,
                "merlin.kind": str(instance.kind),
                "merlin.queue": instance.queue,
                "merlin.planned": instance.num_tasks,
                **{f"merlin.parameter.{name}": value for name, value in instance.params.items()},
            }
            yield _span(instance.id, trace, ids[instance.id], top, have, more)
        times.add(have)


def _of_chunk(study: Workspace, record: StreamedRecord, trace: int, parent: int) -> Span:
    header, writer = record.header, record.writer
    times = _Times(header.started, header.ended, list(header.counts))
    who = (study.plan.study_id, writer.session, writer.host, writer.worker, header.instance)
    span = _id(8, "chunk", *who, header.lo, header.hi, header.attempt, f"{header.started:.6f}")
    more: dict[str, Value] = {
        "merlin.first_task": header.lo,
        "merlin.end_task": header.hi,
        "merlin.attempt": header.attempt,
        "merlin.worker": writer.worker,
        "merlin.session": writer.session,
        "host.name": writer.host,
        "process.pid": writer.pid,
    }
    return _span(study.instance(header.instance).step, trace, span, parent, times, more)


def _span(name: str, trace: int, span: int, parent: int, times: _Times, attributes: dict[str, Value]) -> Span:
    words = ("ok", "failed", "skipped", "interrupted")
    counts = {f"merlin.{word}": num for word, num in zip(words, times.counts, strict=True)}
    return Span(
        name=name,
        trace_id=trace,
        span_id=span,
        parent_id=parent,
        start_ns=round(1e9 * times.start),
        end_ns=round(1e9 * max(times.start, times.end)),
        status="error" if times.counts[1] else "ok" if times.counts[0] else "unset",
        attributes={**attributes, **counts},
    )


def _id(num_bytes: int, *words: object) -> int:
    """A number that follows from the words, and is not 0."""
    text = "\0".join(map(str, words)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(text).digest()[:num_bytes], "big") or 1
