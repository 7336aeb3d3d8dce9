"""One worker: what it serves and runs, what it has done for a study, and why it has nothing to do."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct, field

from merlin import __version__
from merlin.base.text import count, duration, short_name
from merlin.batch.walltime import as_clock
from merlin.errors import command_line
from merlin.execution.distributed.registry import RunningChunk, WorkerInfo
from merlin.execution.distributed.stay import num_that_fit
from merlin.plan.bad_nodes import why_quarantined
from merlin.plan.tasks import Outcome
from merlin.views.obstacle import Kind, Obstacle
from merlin.views.server_obstacles import is_silent
from merlin.views.study_facts import OnServers, StudyFacts


class Done(Struct, frozen=True, kw_only=True):
    """What a worker has recorded of one study."""

    chunks: int = 0
    ok: int = 0
    failed: int = 0
    busy_s: float = 0.0
    last: float = 0.0  # epoch seconds of the end of its last chunk
    steps: tuple[str, ...] = ()


class WorkerStory(Struct, frozen=True, kw_only=True):
    """A worker that is alive, or that has worked for the study."""

    name: str
    host: str
    is_alive: bool  # as far as it is known: a process of a local run is not registered
    queues: tuple[str, ...] = ()  # as in specs
    slots: int = 0  # chunks at a time; 0: not known
    cores: int = 0
    gpus: tuple[str, ...] = ()
    version: str = ""
    job: str = ""
    left_s: float | None = None  # of its walltime
    running: tuple[RunningChunk, ...] = ()  # of all studies
    done: Done = field(default_factory=Done)
    obstacles: tuple[Obstacle, ...] = ()  # why it does not run more of this study

    @property
    def exit_code(self) -> int:
        return 0 if self.running or all(each.is_normal for each in self.obstacles) else 1


def known_workers(members: Sequence[StudyFacts]) -> list[str]:
    """The names of live workers of this user, and of processes that have worked for the study."""
    names: dict[str, None] = {}
    for facts in members:
        if facts.servers is not None:
            names |= dict.fromkeys(short_name(worker.name) for worker in facts.servers.workers)
        writers = (w for s in facts.state.segments if s.header for w in s.header.writers)
        names |= dict.fromkeys(
            short_name(writer.worker) for writer in writers if writer.worker != "controller"
        )
    return list(names)


def worker_story(members: Sequence[StudyFacts], name: str) -> WorkerStory:
    """What is known of a worker; `name`: one of `known_workers`."""
    done, host = _done(members, name)
    for facts in members:
        worker = _registered(facts.servers, name)
        if worker is not None and facts.servers is not None:
            return WorkerStory(
                name=name,
                host=worker.host,
                is_alive=worker.is_alive,
                queues=tuple(sorted(facts.servers.served[worker.name])),
                slots=worker.concurrency,
                cores=worker.cores,
                gpus=tuple(worker.gpus),
                version=worker.version,
                job=worker.job,
                left_s=None if worker.ends is None else max(0.0, worker.ends - facts.now),
                running=tuple(worker.running),
                done=done,
                obstacles=tuple(_why_idle(facts, facts.servers, worker)),
            )
    is_local = any(facts.holder is not None for facts in members)
    return WorkerStory(
        name=name,
        host=host,
        is_alive=is_local,
        done=done,
        obstacles=() if is_local else (_gone(members, name),),
    )


def _registered(servers: OnServers | None, name: str) -> WorkerInfo | None:
    if servers is None:
        return None
    return next((worker for worker in servers.workers if short_name(worker.name) == name), None)


def _done(members: Sequence[StudyFacts], name: str) -> tuple[Done, str]:
    """What the worker or its processes have recorded, and on which host."""
    chunks = ok = failed = 0
    busy_s = last = 0.0
    steps: dict[str, None] = {}
    host = ""
    for facts in members:
        for entry in facts.state.entries():
            writer, header = entry.writer, entry.header
            if short_name(writer.worker) != name and not short_name(writer.worker).startswith(f"{name}."):
                continue
            host = writer.host
            chunks += 1
            ok += header.counts[Outcome.OK]
            failed += header.counts[Outcome.FAILED]
            busy_s += header.elapsed_s
            last = max(last, header.ended)
            steps[facts.workspace.instance(header.instance).step] = None
    return Done(chunks=chunks, ok=ok, failed=failed, busy_s=busy_s, last=last, steps=tuple(steps)), host


def _gone(members: Sequence[StudyFacts], name: str) -> Obstacle:
    """A worker that nobody has registered, and that is no process of a local run."""
    return Obstacle(
        what=f"{name} has ended: the run that it was part of is over, or it has left",
        remedy=command_line("explain", members[0].workspace.path),
        kind=Kind.STATE,
        is_normal=all(counts.ok == counts.planned for facts in members for counts in facts.counts.values()),
    )


def _why_idle(facts: StudyFacts, servers: OnServers, worker: WorkerInfo) -> Iterator[Obstacle]:
    """Why a registered worker does not run (more) tasks of the study."""
    path, queues = facts.workspace.path, servers.served[worker.name]
    ours = {instance.queue for instance in facts.workspace.plan.instances}
    if is_silent(worker):
        log = f"merlin_logs/{short_name(worker.name).removesuffix(f'.{worker.host}')}.log"
        yield Obstacle(
            what=f"it was not heard of for {duration(worker.age_s)}: it hangs, was killed, or cannot reach Redis",
            remedy=f"look at its log on {worker.host}, {log}",
            kind=Kind.LEASE,
        )
    if worker.is_stopping:
        yield Obstacle(
            what="it is ending, and takes nothing more",
            remedy=facts.ways_to_start,
            kind=Kind.WORKERS,
        )
    if not queues & ours:
        yield Obstacle(
            what=f"it serves {', '.join(sorted(queues))}, and tasks of this study go to {', '.join(sorted(ours))}",
            remedy=facts.ways_to_start,
            kind=Kind.WORKERS,
        )
        return
    if worker.place in facts.bad_nodes:
        yield Obstacle(
            what=why_quarantined(worker.place, facts.bad_nodes[worker.place]),
            remedy=f"see what failed there: {command_line('failures', path)}",
            kind=Kind.NODE,
        )
    if worker.version != __version__:
        yield Obstacle(
            what=f"it runs Merlin {worker.version}, and this is {__version__}",
            remedy=f"{command_line('stop-workers')}, and start it with this version",
            kind=Kind.VERSION,
        )
    if len(worker.running) >= worker.concurrency:
        yield _busy(facts, worker)
        return
    yield from _of_its_queues(facts, servers, worker, queues & ours)


def _busy(facts: StudyFacts, worker: WorkerInfo) -> Obstacle:
    others = sum(chunk.study != facts.workspace.plan.study_id for chunk in worker.running)
    whose = f", {others} of them of other studies" if others else ""
    return Obstacle(
        what=f"all of its {count(worker.concurrency, 'slot')} are busy{whose}",
        kind=Kind.BUSY,
        is_normal=True,
    )


def _of_its_queues(
    facts: StudyFacts, servers: OnServers, worker: WorkerInfo, queues: frozenset[str]
) -> Iterator[Obstacle]:
    """Why it takes nothing of the queues that it shares with the study."""
    wanted = [entry for entry in servers.work if entry.queue in queues and entry.num_at_once]
    if not wanted:
        waiting = [i.step for i in facts.workspace.plan.instances if facts.counts[i.id].waiting]
        waits = f"; {', '.join(dict.fromkeys(waiting))} wait for others" if waiting else ""
        yield Obstacle(
            what=f"nothing of its queues ({', '.join(sorted(queues))}) is left to run{waits}",
            remedy=command_line("explain", facts.workspace.path),
            kind=Kind.DEPENDENCY,
            is_normal=True,
        )
        return
    left_s = worker.tasks_end - facts.now
    fits = 0
    for entry in wanted:
        if entry.need_s > left_s:
            yield Obstacle(
                what=f"tasks of queue {entry.queue} need {as_clock(entry.need_s)}, and {as_clock(max(0.0, left_s))} "
                "of its walltime are left",
                remedy=f"workers with more time: {facts.ways_to_start}",
                kind=Kind.WALLTIME,
            )
        elif not num_that_fit([worker], entry.need):
            yield Obstacle(
                what=f"tasks of queue {entry.queue} need {entry.need}, and it has {_has(worker)}",
                remedy="start workers where there are such, or ask for less in the next study",
                kind=Kind.SIZE,
            )
        else:
            fits += 1
    if fits:
        yield _of_free_slots(facts, servers, worker, queues)


def _of_free_slots(
    facts: StudyFacts, servers: OnServers, worker: WorkerInfo, queues: frozenset[str]
) -> Obstacle:
    """The obstacle of a worker that could run some of what is left for its queues."""
    ours = {i.id for i in facts.workspace.plan.instances if i.queue in queues}
    offered = sum(not each.worker and each.chunk.instance in ours for each in servers.handed)
    free = count(worker.concurrency - len(worker.running), "free slot")
    if not offered:
        return Obstacle(
            what=f"it has {free}; what is left for its queues runs elsewhere, or waits for other tasks or a delay",
            remedy=command_line("explain", facts.workspace.path),
            kind=Kind.DEPENDENCY,
            is_normal=True,
        )
    return Obstacle(
        what=f"it has {free}, and {count(offered, 'chunk')} on offer: the next one is on its way",
        remedy=f"if that lasts, messages may be lost: {command_line('restart', facts.workspace.path)}",
        kind=Kind.MESSAGE,
        is_normal=True,
    )


def _has(worker: WorkerInfo) -> str:
    cores = count(worker.cores or worker.concurrency, "core")
    return f"{cores} and {count(len(worker.gpus), 'GPU')}"
