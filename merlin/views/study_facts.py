"""What can be known of a study at one moment: its ledger, who runs it, what Redis holds of it, and its disk."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from merlin.base.files import temporary_name
from merlin.base.ranges import Range
from merlin.base.text import size
from merlin.batch.contract import JobState
from merlin.config.load import find_config, require_config
from merlin.config.model import Config
from merlin.errors import ConfigError, ExecutionError, ForgedMessageError
from merlin.execution.conductor import memories_of, quarantined_nodes
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.messages import open_chunk
from merlin.execution.distributed.redis_backend import RedisBackend, RedisMailbox
from merlin.execution.distributed.registry import OpenWork, WorkerInfo
from merlin.execution.job_folder import StepJob, all_jobs
from merlin.execution.places import places_for
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import Replay, replay
from merlin.ledger.session import session_start
from merlin.plan.fit import need_of
from merlin.plan.memories import Deferral
from merlin.plan.pieces import pieces_of
from merlin.plan.plan import StepInstance
from merlin.plan.schedule import Scheduler
from merlin.plan.task_states import TaskCounts
from merlin.plan.tasks import NO_OUTCOME, Chunk, Outcome
from merlin.status.activity import Holder
from merlin.status.live import holder_of
from merlin.status.run_events import end_of_run, is_published, runs_of, was_published
from merlin.status.snapshot import CANCELLED
from merlin.views.in_time import in_time
from merlin.views.queues import served_queues
from merlin.views.servers import reach_all
from merlin.views.ways_to_start import ways_to_more, ways_to_start
from merlin.workspace.directory import Workspace

SERVERS_S = 5.0  # for everything that Redis is asked, after it has shown that it answers
FULL = 0.98  # of its memory
PROBE_BYTES = 4096
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class Handed(Struct, frozen=True, kw_only=True):
    """A chunk that is offered to workers, or held by one."""

    chunk: Chunk
    since: float  # epoch seconds
    worker: str  # "" if nobody has taken it
    left_s: float  # of its lease


class OnServers(Struct, frozen=True, kw_only=True):
    """What Redis holds of the study, and the workers of this user."""

    is_held: bool  # Redis has the study
    owner: str  # the worker that decides what runs; "" if none does
    plan: str  # the digest of the plan that was published; "" if it is not advertised
    handed: tuple[Handed, ...]
    work: tuple[OpenWork, ...]
    workers: tuple[WorkerInfo, ...]  # alive, or silent for less than an hour
    served: Mapping[str, frozenset[str]]  # by worker: queues, as in specs
    memory_full: str  # "1.0 of 1.0 GB" if Redis can take nothing more

    def serving(self, queue: str) -> list[WorkerInfo]:
        """The live workers of a queue that are not ending."""
        alive = (worker for worker in self.workers if worker.is_alive and not worker.is_stopping)
        return [worker for worker in alive if queue in self.served[worker.name]]

    def worker(self, name: str) -> WorkerInfo | None:
        return next((worker for worker in self.workers if worker.name == name), None)


class Waiting(Struct, frozen=True, kw_only=True):
    """Tasks that asked to run again, and wait for their delay."""

    instance: str
    tasks: tuple[Range, ...]
    until: float  # epoch seconds

    @property
    def num_tasks(self) -> int:
        return sum(hi - lo for lo, hi in self.tasks)


class Disk(Struct, frozen=True, kw_only=True):
    """The file system that the workspace is on."""

    free_bytes: int
    free_files: int | None  # None: it does not say
    refusal: str = ""  # why it takes no file: it is full, or a quota is; known if it was tried


class StudyFacts(Struct, frozen=True, kw_only=True):
    """A study, or one of its extensions."""

    workspace: Workspace
    now: float
    state: Replay
    counts: Mapping[str, TaskCounts]  # by step instance
    last_run: EventRecord | None  # how the last run began or ended
    holder: Holder | None  # the command that runs it here, or on another machine of the file system
    is_published: bool  # the last run was handed to workers, and has not ended by the ledger
    servers: OnServers | None  # None: they were not asked, or could not be
    trouble: tuple[str, str]  # why they could not be asked, and what to do
    step_jobs: tuple[StepJob, ...]  # batch jobs that steps have of their own
    waiting: tuple[Waiting, ...]
    bad_nodes: Mapping[str, str]  # bad node -> the step that showed it
    lacking: Mapping[str, str]  # by step: what its tasks need and this machine does not have
    disk: Disk | None

    @property
    def missing(self) -> int:
        return sum(counts.missing for counts in self.counts.values())

    @property
    def failed(self) -> int:
        return sum(counts.failed for counts in self.counts.values())

    @property
    def is_running(self) -> bool:
        """True if somebody works on the study, or would do so if there were something to do."""
        if self.holder is not None:
            return not self.holder.is_suspended
        return self.is_published and self.servers is not None and self.servers.is_held

    @property
    def num_running(self) -> int:
        """Chunks that are known to run on workers and in batch jobs of steps."""
        return sum(job.state is JobState.RUNNING for job in self.step_jobs) + self.num_on_workers

    @property
    def num_on_workers(self) -> int:
        """Chunks that workers hold."""
        return sum(bool(each.worker) for each in self.handed)

    @property
    def handed(self) -> tuple[Handed, ...]:
        """What the servers say of chunks; of a study that has stopped, without leases that have run out."""
        handed = self.servers.handed if self.servers is not None else ()
        return tuple(h for h in handed if self.is_published or not h.worker or h.left_s > 0)

    @property
    def ways_to_start(self) -> str:
        """The commands that start workers of the study."""
        return ways_to_start(self.workspace.plan, self.workspace.path)

    @property
    def ways_to_more(self) -> str:
        """What brings more workers of the study, or larger ones, if it has some."""
        return ways_to_more(self.workspace.plan, self.workspace.path)

    def instances(self, step: str) -> list[StepInstance]:
        return [i for i in self.workspace.plan.instances if step in (i.step, i.id)]


def facts_of(
    workspace: Workspace,
    *,
    now: float | None = None,
    asks_servers: bool = False,
    tries_disk: bool = False,
) -> StudyFacts:
    """Ask everything except the batch scheduler. It takes a few seconds at most, unless the file system hangs.

    The servers are asked about a study that workers have, or that was stopped there; with `asks_servers` in any case,
    if there are some. With `tries_disk`, a small file is written and removed, which shows whether a quota is full.

    Raises LedgerError if the ledger cannot be read.
    """
    now = time.time() if now is None else now
    state = replay(workspace.ledger_dir, workspace.plan)
    counts, published = _counted(workspace, state)
    servers, trouble = None, ("", "")
    if published or ((asks_servers or _may_still_run(state)) and _has_servers()):
        servers, trouble = _ask_servers(workspace)
    if published and servers is not None and not servers.is_held and state.update():
        counts, published = _counted(workspace, state)  # it has ended after the ledger was read
    holder = holder_of(workspace, state)
    runs = runs_of(state.events())
    return StudyFacts(
        workspace=workspace,
        now=now,
        state=state,
        counts=counts,
        last_run=runs[-1] if runs else None,
        holder=holder,
        is_published=published,
        servers=servers,
        trouble=trouble,
        step_jobs=tuple(all_jobs(workspace)),
        waiting=tuple(_waiting(state, holder, now)),
        bad_nodes=quarantined_nodes(state),
        lacking={} if published else _lacking(workspace, counts),
        disk=_disk(workspace, tries_disk),
    )


def _counted(workspace: Workspace, state: Replay) -> tuple[Mapping[str, TaskCounts], bool]:
    """The tasks of every step instance, and whether workers have some of them to run."""
    counts = Scheduler(workspace.plan, state.outcomes, num_workers=1).counts()
    return counts, is_published(state) and any(each.missing for each in counts.values())


def _may_still_run(state: Replay) -> bool:
    """True if the last run was stopped on workers: what they had begun goes on to its end, unless it was killed."""
    return was_published(state) and end_of_run(state) not in (None, CANCELLED)


def _has_servers() -> bool:
    try:
        return find_config() is not None
    except ConfigError:
        return False


def _ask_servers(workspace: Workspace) -> tuple[OnServers | None, tuple[str, str]]:
    try:
        config = require_config()
    except ConfigError as error:
        return None, (str(error).partition("\n")[0], "merlin config check")
    for _, reach in reach_all(config):
        if not reach.ok:
            return None, (reach.detail, reach.hint or "merlin doctor")
    try:
        return in_time(lambda: _on_servers(workspace, config), SERVERS_S, "Redis"), ("", "")
    except ExecutionError as error:
        return None, (str(error), "merlin doctor")


def _on_servers(workspace: Workspace, config: Config) -> OnServers:
    study = workspace.plan.study_id
    client = make_client(config.backend)
    backend = RedisBackend(config, client, lease_s=0.0)
    mailbox = backend.mailbox(study)
    is_held = mailbox.exists()
    workers = backend.registry.workers(all=True)
    advertised = {info.study_id: info.plan for info in backend.registry.studies()}
    return OnServers(
        is_held=is_held,
        owner=mailbox.holder() if is_held else "",
        plan=advertised.get(study, ""),
        handed=tuple(handed_out(mailbox, study, config.key)) if is_held else (),
        work=tuple(backend.registry.open_work().get(study, ())),
        workers=tuple(workers),
        served={worker.name: frozenset(served_queues(worker, config)) for worker in workers},
        memory_full=_memory_full(client),
    )


def handed_out(mailbox: RedisMailbox, study: str, key: bytes) -> Iterator[Handed]:
    """The chunks of a study that are offered to workers, or held by one; forged messages are passed over."""
    for offer in mailbox.offers():
        with suppress(ForgedMessageError):
            chunk = open_chunk(offer.envelope, study, offer.lease, key)
            yield Handed(chunk=chunk, since=offer.since, worker=offer.worker, left_s=offer.expires_s)


def _memory_full(client: object) -> str:
    """How full Redis is; "" if it is not full, or where this may not be asked."""
    import redis

    with suppress(redis.ResponseError):
        memory = client.info("memory")  # type: ignore[attr-defined]
        used, most = int(memory.get("used_memory", 0)), int(memory.get("maxmemory", 0))
        if most and used >= FULL * most:
            return f"{size(used)} of {size(most)}"
    return ""


def _waiting(state: Replay, holder: Holder | None, now: float) -> Iterable[Waiting]:
    """Tasks that wait for their delay. A run on this machine counts seconds since the boot, an owner epoch seconds."""
    sessions = {entry.writer.session for entry in state.event_entries()}
    session = max(sessions, key=lambda name: session_start(name, 0.0), default="")
    if not session:
        return
    shift = time.time() - time.monotonic() if holder is not None and holder.is_here else 0.0
    last: dict[tuple[str, int, int], Waiting] = {}
    for memory in memories_of(state, session):
        if not isinstance(memory, Deferral) or memory.not_before + shift <= now:
            continue
        outcomes = state.outcomes_of(memory.chunk.instance)
        pieces = (
            r
            for lo, hi in pieces_of(memory.chunk)
            for r in outcomes.ranges((NO_OUTCOME, Outcome.INTERRUPTED), lo, hi)
        )
        if tasks := tuple(pieces):
            key = (memory.chunk.instance, memory.chunk.lo, memory.chunk.hi)
            until = memory.not_before + shift
            last[key] = Waiting(instance=memory.chunk.instance, tasks=tasks, until=until)
    yield from last.values()


def _lacking(workspace: Workspace, counts: Mapping[str, TaskCounts]) -> dict[str, str]:
    """Steps that could not run here, and why."""
    left = [i for i in workspace.plan.instances if counts[i.id].missing]
    found: dict[str, str] = {}
    if not any(need_of(instance).gpus for instance in left):
        return found
    places = places_for(workspace.plan, os.environ, 1)
    for instance in left:
        try:
            if places is not None:
                places.check([instance])
        except ExecutionError as error:
            found[instance.step] = str(error)
    return found


def _disk(workspace: Workspace, tries: bool) -> Disk | None:
    try:
        found = os.statvfs(workspace.path)
    except OSError:
        return None
    return Disk(
        free_bytes=found.f_bavail * found.f_frsize,
        free_files=found.f_favail if found.f_files else None,
        refusal=_refusal(workspace) if tries else "",
    )


def _refusal(workspace: Workspace) -> str:
    """Why there is no room for a file of ours; "" if there is room, or if only permission is lacking."""
    path = temporary_name(workspace.info / "room")
    try:
        with path.open("xb") as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return (error.strerror or str(error)) if error.errno in _NO_ROOM else ""
    finally:
        path.unlink(missing_ok=True)
    return ""
