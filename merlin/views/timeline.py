"""A study as a trace that Perfetto and Chrome draw: machines, their workers, what each ran, batch jobs and events.

The format is Chrome's "Trace Event Format", as JSON. It is written as it is read, so a large ledger needs no memory.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import IO, Any

from msgspec import Struct

from merlin.base.files import replacing
from merlin.batch.job_records import JobRecord, JobRecords
from merlin.execution.distributed.worker_jobs import jobs_folder
from merlin.execution.job_folder import WORKER_PREFIX
from merlin.views.record_stream import StreamedRecord, events_of, streamed_records
from merlin.workspace.directory import Workspace, shown_together

BATCH_JOBS = 1  # the number of their "process"; hosts follow
EVENTS = 2
FIRST_HOST = 3
Event = dict[str, Any]


class Written(Struct, frozen=True, kw_only=True):
    """What a trace has in it."""

    path: Path
    slices: int  # of work on chunks
    hosts: int
    workers: int
    jobs: int
    events: int


def write_trace(workspace: Workspace, path: Path, *, now: float | None = None) -> Written:
    """Write the trace of a study and its extensions; compressed if the name ends in .gz."""
    trace = _Trace(workspace, time.time() if now is None else now)
    with ExitStack() as stack:
        temporary = stack.enter_context(replacing(path))
        raw = stack.enter_context(open(temporary, "wb"))
        file: IO[bytes] | gzip.GzipFile = raw
        if (
            path.suffix == ".gz"
        ):  # neither a name nor a time in it, so that the same study makes the same file
            file = stack.enter_context(gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0))
        file.write(b'{"displayTimeUnit": "ms", "otherData": ')
        file.write(json.dumps(trace.about()).encode() + b', "traceEvents": [')
        separator, encode = b"\n", json.JSONEncoder(separators=(",", ":")).encode
        for event in trace.events():
            file.write(separator + encode(event).encode())
            separator = b",\n"
        file.write(b"\n]}\n")
    return trace.written(path)


class _Trace:
    """Makes the events of one trace, once."""

    def __init__(self, workspace: Workspace, now: float) -> None:
        self._workspace, self._now = workspace, now
        self._studies = shown_together(workspace)
        self._happened = [(study, event) for study in self._studies for event in events_of(study)]
        self._jobs = JobRecords(jobs_folder(workspace.path)).all()
        self._began = self._origin()
        self._hosts: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}  # by host and worker
        self._new_thread = count(1)
        self._num_slices = 0

    def _origin(self) -> float:
        """The time 0 of the trace, in epoch seconds."""
        times = [event.time for _, event in self._happened if event.time]
        times += [job.created for job in self._jobs]
        return min(times, default=0.0)

    def about(self) -> dict[str, Any]:
        """Facts about the trace as a whole."""
        plan = self._workspace.plan
        return {
            "study": plan.name,
            "workspace": str(self._workspace.path),
            "began": self._began,  # epoch seconds
            "code_version": plan.code_version,
        }

    def written(self, path: Path) -> Written:
        return Written(
            path=path,
            slices=self._num_slices,
            hosts=len(self._hosts),
            workers=len(self._threads),
            jobs=len(self._jobs),
            events=len(self._happened),
        )

    def events(self) -> Iterator[Event]:
        yield from self._of_jobs()
        yield from self._of_events()
        for study in self._studies:
            until: dict[int, float] = {}  # by thread: the end of its last slice
            for record in streamed_records(study):
                yield from self._of_record(study, record, until)

    # ------------------------------------------------------------------ workers

    def _of_record(
        self, study: Workspace, record: StreamedRecord, until: dict[int, float]
    ) -> Iterator[Event]:
        header, writer = record.header, record.writer
        self._num_slices += 1
        process = yield from self._process(writer.host)
        ok, failed, skipped, interrupted = header.counts
        args = {
            "tasks": [header.lo, header.hi],
            "ok": ok, "failed": failed, "skipped": skipped, "interrupted": interrupted,
            "attempt": header.attempt,
        }  # fmt: skip
        name = study.below_root(header.instance)
        common: Event = {"name": name, "cat": "failed" if failed else "chunk", "pid": process, "args": args}
        if writer.worker.startswith(WORKER_PREFIX):  # several at a time on a machine, each with its own name
            lease = writer.worker.removeprefix(WORKER_PREFIX)
            common |= {"cat": "step job", "tid": 0, "id": lease}
            yield {**common, "ph": "b", "ts": self._us(header.started)}
            yield {**common, "ph": "e", "ts": self._us(header.ended), "args": {}}
            return
        thread = yield from self._thread(process, writer.host, writer.worker)
        # slices of a thread must not overlap, but a record may have begun before the last record ended
        begin = max(header.started, until.get(thread, 0.0))
        end = until[thread] = max(begin, header.ended)
        yield {**common, "ph": "X", "tid": thread, "ts": self._us(begin), "dur": self._length_us(begin, end)}

    def _process(self, host: str) -> Generator[Event, None, int]:
        number = self._hosts.get(host)
        if number is None:
            number = self._hosts[host] = FIRST_HOST + len(self._hosts)
            yield from _named("process", host or "a machine", pid=number)
        return number

    def _thread(self, process: int, host: str, worker: str) -> Generator[Event, None, int]:
        number = self._threads.get((host, worker))
        if number is None:
            number = self._threads[host, worker] = next(self._new_thread)
            yield from _named("thread", worker, pid=process, tid=number)
        return number

    # ------------------------------------------------------------------ jobs and events

    def _of_jobs(self) -> Iterator[Event]:
        if self._jobs:
            yield from _named("process", "batch jobs", pid=BATCH_JOBS)
        for number, job in enumerate(self._jobs, 1):
            common: Event = {"pid": BATCH_JOBS, "tid": number, "ph": "X", "cat": "job"}
            yield from _named("thread", f"job {job.id or job.name}", pid=BATCH_JOBS, tid=number)
            args = {
                "nodes": job.num_nodes,
                "purpose": "workers",
                "reason": job.reason,
                "refused": job.refused,
            }
            started, ended = _spell(job, self._now)
            waited = ended if started is None else started
            yield {
                **common, "name": "refused" if job.refused else "waits", "args": args,
                "ts": self._us(job.created), "dur": self._length_us(job.created, waited),
            }  # fmt: skip
            if started is not None:
                hosts = list(job.seen.hosts) if job.seen else []
                state = str(job.seen.state) if job.seen else ""
                yield {
                    **common, "name": "runs", "args": {**args, "hosts": hosts, "state": state},
                    "ts": self._us(started), "dur": self._length_us(started, ended),
                }  # fmt: skip

    def _of_events(self) -> Iterator[Event]:
        if self._happened:
            yield from _named("process", "the study", pid=EVENTS)
            yield from _named("thread", "events", pid=EVENTS, tid=1)
        for study, event in self._happened:
            name = f"{study.member}: {event.kind}" if study.member else event.kind
            yield {
                "name": name, "cat": "event", "ph": "i", "s": "g", "pid": EVENTS, "tid": 1,
                "ts": self._us(event.time or self._began),
                "args": {**event.data, "host": event.host},
            }  # fmt: skip

    def _us(self, at: float) -> float:
        return round(1e6 * (at - self._began), 1)

    def _length_us(self, begin: float, end: float) -> float:
        return max(0.0, round(1e6 * (end - begin), 1))


def _named(what: str, name: str, **where: int) -> Iterator[Event]:
    yield {"name": f"{what}_name", "ph": "M", **where, "args": {"name": name}}


def _spell(job: JobRecord, now: float) -> tuple[float | None, float]:
    """When a job began and ended, as far as its record knows; one that is not over lasts until now."""
    seen = job.seen
    if seen is None:
        return None, job.created if job.refused else now
    if not seen.state.is_over:
        return seen.started, now
    return seen.started, max(job.seen_at or job.created, seen.started or job.created)
