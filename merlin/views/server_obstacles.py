"""Which conditions are not met, by what Redis knows of a published study. Pure: facts in, obstacles out."""

from __future__ import annotations

from collections.abc import Iterator

from merlin import __version__
from merlin.base.text import count, duration, short_name
from merlin.errors import command_line
from merlin.execution.distributed.registry import BEAT_S, RunningChunk, WorkerInfo
from merlin.plan.bad_nodes import why_quarantined
from merlin.plan.job_policy import job_policy
from merlin.plan.tasks import Chunk
from merlin.views.obstacle import Kind, Obstacle
from merlin.views.study_facts import Handed, OnServers, StudyFacts

MAX_NAMED = 3  # leases of silent workers
LATE_S = 10.0  # an offer is late if nobody takes it for so long, although there are free slots


def of_servers(facts: StudyFacts) -> Iterator[Obstacle]:
    """Conditions of a study that was handed to workers, and has work left."""
    path, servers = facts.workspace.path, facts.servers
    if servers is None:
        what, remedy = facts.trouble
        yield Obstacle(what=what, remedy=remedy, kind=Kind.SERVER)
        return
    if not servers.is_held:
        yield Obstacle(
            what=f"Redis does not hold {path} any more; workers that know it publish it again within a minute",
            remedy=command_line("restart", path),
            kind=Kind.SERVER,
        )
        return
    if servers.memory_full:
        yield Obstacle(
            what=f"Redis is full ({servers.memory_full}), so nothing can be offered or reported",
            remedy="give it more memory (redis-cli config set maxmemory 4gb), or remove what others have in it",
            kind=Kind.SERVER,
        )
    if servers.plan and servers.plan != facts.workspace.digest:
        yield Obstacle(
            what=f"the plan in {path} is not the one that was published: it was altered, and workers refuse it",
            remedy=f"put merlin_info/plan.json back as it was, or: {command_line('cancel', path)}",
            kind=Kind.PLAN,
        )
    yield from _of_workers(facts, servers)
    yield from _of_versions(facts, servers)
    yield from _of_leases(facts, servers)
    yield from _of_work(facts, servers)
    yield from _of_offers(facts, servers)


def _of_workers(facts: StudyFacts, servers: OnServers) -> Iterator[Obstacle]:
    """Queues with work that no worker serves."""
    start = facts.ways_to_start
    queues: dict[str, dict[str, None]] = {}
    for instance in facts.workspace.plan.instances:
        if facts.counts[instance.id].startable and not servers.serving(instance.queue):
            queues.setdefault(instance.queue, {})[instance.step] = None
    for queue, steps in queues.items():
        ending = [w for w in servers.workers if w.is_alive and queue in servers.served[w.name]]
        why = (
            f"{count(len(ending), 'worker')} of its queue {queue} will end, and no other serves it"
            if ending
            else f"no worker serves its queue {queue}"
        )
        yield Obstacle(
            what=f"tasks of {', '.join(steps)} are ready, and {why}",
            remedy=start,
            kind=Kind.WORKERS,
            step=next(iter(steps)) if len(steps) == 1 else "",
        )
    if not queues and not servers.owner and not _serving(facts, servers):
        yield Obstacle(what="no worker is there to decide what runs next", remedy=start, kind=Kind.WORKERS)


def _serving(facts: StudyFacts, servers: OnServers) -> list[WorkerInfo]:
    """The live workers that serve a queue of the study."""
    found: dict[str, WorkerInfo] = {}
    for queue in {instance.queue for instance in facts.workspace.plan.instances}:
        found |= {worker.name: worker for worker in servers.serving(queue)}
    return list(found.values())


def _of_versions(facts: StudyFacts, servers: OnServers) -> Iterator[Obstacle]:
    others: dict[str, list[str]] = {}
    for worker in _serving(facts, servers):
        if worker.version != __version__:
            others.setdefault(worker.version, []).append(short_name(worker.name))
    for version, names in others.items():
        yield Obstacle(
            what=f"{', '.join(names[:MAX_NAMED])}{' and others' if len(names) > MAX_NAMED else ''} "
            f"{'runs' if len(names) == 1 else 'run'} Merlin {version}, and this is {__version__}: messages and "
            "plans of one may mean nothing to the other",
            remedy=f"{command_line('stop-workers')}, and start them with this version",
            kind=Kind.VERSION,
        )


def _of_leases(facts: StudyFacts, servers: OnServers) -> Iterator[Obstacle]:
    """Tasks that are held by a worker which has fallen silent."""
    silent = [each for each in servers.handed if each.worker and is_silent(servers.worker(each.worker))]
    for each in silent[:MAX_NAMED]:
        yield Obstacle(
            what=describe_lease(each, servers, facts.now),
            remedy=_of_silence(each),
            kind=Kind.LEASE,
            step=facts.workspace.instance(each.chunk.instance).step,
        )
    if len(silent) > MAX_NAMED:
        yield Obstacle(
            what=f"{count(len(silent) - MAX_NAMED, 'more lease')} of silent workers", kind=Kind.LEASE
        )


def _of_silence(each: Handed) -> str:
    name = short_name(each.worker)
    left = duration(max(0.0, each.left_s))
    hangs = command_line("stop-workers", "--workers", name, "--now")
    return f"if it is dead, its lease ends in {left} and the tasks run again; if it hangs: {hangs}"


def is_silent(worker: WorkerInfo | None) -> bool:
    """True if the worker has missed more than one beat, or is gone."""
    return worker is None or worker.age_s > 2 * BEAT_S


def describe_lease(each: Handed, servers: OnServers, now: float) -> str:
    """Who holds which tasks, and since when."""
    worker, chunk = servers.worker(each.worker), each.chunk
    name = short_name(each.worker)
    where = f" on {worker.host}" if worker is not None else ""
    heard = ""
    if worker is None:
        heard = ", and has left, or was not heard of for an hour"
    elif is_silent(worker):
        heard = f", and was not heard of for {duration(worker.age_s)}"
    return f"{name}{where} has held {tasks_of(chunk)} for {duration(max(0.0, now - each.since))}{heard}"


def tasks_of(chunk: Chunk | RunningChunk) -> str:
    """ "task 3 of sim", "tasks 3 to 9 of sim"."""
    tasks = f"task {chunk.lo}" if chunk.hi == chunk.lo + 1 else f"tasks {chunk.lo} to {chunk.hi - 1}"
    return f"{tasks} of {chunk.instance}"


def _of_work(facts: StudyFacts, servers: OnServers) -> Iterator[Obstacle]:
    """What the owner says about steps that need workers with more time, cores or GPUs than there are."""
    bad = {why_quarantined(node, step) for node, step in facts.bad_nodes.items()}
    reasons = dict.fromkeys(reason for entry in servers.work for reason in entry.waiting)
    for reason in reasons:
        if reason in bad:
            continue
        is_time = "have at most" in reason
        step = next((i.step for i in facts.workspace.plan.instances if _is_about(reason, i.step)), "")
        yield Obstacle(
            what=reason,
            remedy=f"workers {'with more time, e.g. with --walltime' if is_time else 'where there are such'}: "
            f"{facts.ways_to_start}",
            kind=Kind.WALLTIME if is_time else Kind.SIZE,
            step=step,
        )


def _is_about(reason: str, step: str) -> bool:
    return reason.startswith((f"step {step} ", f"step '{step}' "))


def _of_offers(facts: StudyFacts, servers: OnServers) -> Iterator[Obstacle]:
    """Chunks that are offered: all workers are busy, or messages were lost."""
    for queue in dict.fromkeys(instance.queue for instance in facts.workspace.plan.instances):
        serving = servers.serving(queue)
        instances = [i for i in facts.workspace.plan.instances if i.queue == queue and job_policy(i) is None]
        names = {instance.id for instance in instances}
        offered = [each for each in servers.handed if not each.worker and each.chunk.instance in names]
        steps = ", ".join(dict.fromkeys(facts.workspace.instance(e.chunk.instance).step for e in offered))
        if not (serving and offered):
            continue
        busy = [worker for worker in serving if len(worker.running) >= worker.concurrency]
        oldest_s = facts.now - min(each.since for each in offered)
        if len(busy) == len(serving):
            yield Obstacle(
                what=f"tasks of {steps} are ready, and every worker of queue {queue} ({len(serving)}) is busy",
                remedy=f"for more at a time, {facts.ways_to_more}",
                kind=Kind.BUSY,
                is_normal=True,
            )
        elif oldest_s > LATE_S:
            yield Obstacle(
                what=f"{count(len(offered), 'chunk')} of {steps} wait in queue {queue} for up to {duration(oldest_s)}, "
                "although workers have free slots: messages may be lost, or tasks need more cores than are free",
                remedy=f"send lost messages again: {command_line('restart', facts.workspace.path)}",
                kind=Kind.MESSAGE,
            )
