"""The contracts of `merlin.execution.distributed` in memory: the reference implementation, and the servers of tests.

    server = MemoryServer()
    engine = Engine(config, MemoryBackend(server), carrier := MemoryCarrier(), …)
    server.advance(60.0)  # its clock moves only by this call

Each process of a test has a backend of its own, which can be cut off from the server that all of them share.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.errors import OwnershipLostError, StudyGoneError
from merlin.execution.distributed.contracts import (
    Backend,
    Carrier,
    Envelope,
    Letter,
    Offer,
    Standing,
    letter_order,
)
from merlin.execution.distributed.registry import (
    COMMAND_S,
    SILENT_S,
    Command,
    Op,
    OpenWork,
    StudyInfo,
    WorkerInfo,
)

OWNER_S = 4.0  # without a renewal, before another may own a study
KEEP_LETTERS_S = 60.0  # that were read
FORGET_S = 3600.0  # silent workers, and studies that are over
BATCH = 1000  # letters per read

# Called before each call of a server (False) and after it (True). The caller gets the exceptions that it raises.
CallHook = Callable[[str, bool], None]


class _Study(Struct, kw_only=True):
    token: str
    session: str
    until: float  # of the ownership
    read: str = "0"
    over_until: float = 0.0  # the run has ended; it is remembered until then
    held: dict[str, Offer] = field(default_factory=dict)  # offers and leases
    ends: dict[str, float] = field(default_factory=dict)  # of leases
    letters: list[Letter] = field(default_factory=list)


class MemoryServer:
    """The data that a server holds for one user. Threads may share it."""

    def __init__(self) -> None:
        self.now = time.time()
        self.changed = threading.Condition(threading.RLock())
        self.studies: dict[str, _Study] = {}
        self.open_studies: dict[str, StudyInfo] = {}
        self.open_work: dict[str, list[OpenWork]] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.inboxes: dict[str, list[Command]] = {}
        self.counters: dict[str, int] = {}
        self._numbers = itertools.count()

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        with self.changed:
            self.now += seconds
            self.changed.notify_all()

    def lose_studies(self) -> None:
        """Lose everything except the registry, as a server that restarts without its data."""
        with self.changed:
            self.studies.clear()

    def write(self, study: _Study, **letter: Any) -> None:
        id = f"{int(1000 * self.now)}-{next(self._numbers)}"
        study.letters.append(Letter(id=id, **letter))
        self.changed.notify_all()


class MemoryBackend:
    """Implements `contracts.Backend`; threads may share one."""

    def __init__(
        self, server: MemoryServer, *, lease_s: float = 60.0, trouble: CallHook = lambda name, is_done: None
    ) -> None:
        self.server, self.lease_s, self.trouble = server, lease_s, trouble
        self.registry = MemoryRegistry(self)

    def leases(self, study_id: str) -> MemoryLeases:
        return MemoryLeases(self, study_id)

    def mailbox(self, study_id: str) -> MemoryMailbox:
        return MemoryMailbox(self, study_id)

    def time(self) -> float:
        with self.call("time") as server:
            return server.now

    @contextmanager
    def call(self, name: str) -> Iterator[MemoryServer]:
        """Hold the server for one atomic call."""
        self.trouble(name, False)
        with self.server.changed:
            yield self.server
        self.trouble(name, True)


class _StudyClient:
    def __init__(self, backend: MemoryBackend, study_id: str) -> None:
        self._call, self._backend, self._id = backend.call, backend, study_id

    def _find(self, server: MemoryServer) -> _Study | None:
        study = server.studies.get(self._id)
        return None if study is None or study.over_until else study

    def _study(self, server: MemoryServer) -> _Study:
        study = self._find(server)
        if study is None:
            raise StudyGoneError(f"study {self._id}: the server does not hold it (any more)")
        return study


class MemoryLeases(_StudyClient):
    """Implements `contracts.Leases`."""

    def take(self, lease: str, worker: str) -> Envelope | None:
        with self._call("take") as server:
            study = self._study(server)
            offer = study.held.get(lease)
            if offer is None or lease in study.ends:
                return None
            study.held[lease] = replace(offer, worker=worker, since=server.now)
            study.ends[lease] = server.now + self._backend.lease_s
            server.write(study, kind="taken", lease=lease, worker=worker)
            return offer.envelope

    def renew(self, leases: Collection[str]) -> set[str]:
        with self._call("renew") as server:
            study = self._study(server)
            held = study.ends.keys() & set(leases)
            study.ends |= dict.fromkeys(held, server.now + self._backend.lease_s)
            return set(leases) - held

    def settle(self, lease: str, report: Envelope) -> bool:
        with self._call("settle") as server:
            study = self._study(server)
            if lease not in study.ends:
                return False
            server.write(study, kind="report", lease=lease, report=report)
            del study.held[lease], study.ends[lease]
            return True


class MemoryMailbox(_StudyClient):
    """Implements `contracts.Mailbox`."""

    def __init__(self, backend: MemoryBackend, study_id: str) -> None:
        super().__init__(backend, study_id)
        self._token = secrets.token_hex(8)

    def _owned(self, server: MemoryServer) -> _Study:
        study = self._study(server)
        if study.token != self._token:
            raise OwnershipLostError(f"study {self._id} has another owner now")
        return study

    def open(self, session: str, *, only_if_gone: bool = False) -> bool:
        with self._call("open") as server:
            if only_if_gone and self._find(server):
                return False
            self._token, until = secrets.token_hex(8), server.now + OWNER_S
            server.studies[self._id] = _Study(token=self._token, session=session, until=until)
            return True

    def exists(self) -> bool:
        with self._call("exists") as server:
            return self._find(server) is not None

    def own(self, session: str, *, force: bool = False) -> Standing:
        with self._call("own") as server:
            found, now = server.studies.get(self._id), server.now
            if found is not None and found.over_until > now:
                return Standing(is_ours=False, now=now, is_over=True)
            study = self._study(server)
            if study.session != session:
                return Standing(is_ours=False, now=now)  # a later run has begun
            if study.token != self._token and study.until > now and not force:
                return Standing(is_ours=False, now=now)
            study.token, study.until = self._token, now + OWNER_S
            return Standing(is_ours=True, now=now, read=study.read)

    def renew(self) -> float:
        with self._call("renew_ownership") as server:
            self._owned(server).until = server.now + OWNER_S
            return server.now

    def release(self) -> None:
        with self._call("release") as server:
            self._owned(server).until = 0.0

    def offers(self) -> list[Offer]:
        with self._call("offers") as server:
            study, now = self._find(server), server.now
            ends = {} if study is None else study.ends
            offers = [] if study is None else study.held.values()
            return [replace(o, expires_s=ends[o.lease] - now) if o.lease in ends else o for o in offers]

    def names(self) -> set[str]:
        with self._call("names") as server:
            study = self._find(server)
            return set() if study is None else set(study.held)

    def num_held(self) -> int:
        with self._call("num_held") as server:
            study = self._find(server)
            return 0 if study is None else len(study.ends)

    def offer(self, offers: Mapping[str, Envelope], read: str) -> None:
        with self._call("offer") as server:
            study, now = self._owned(server), server.now
            study.held |= {k: Offer(lease=k, envelope=e, since=now) for k, e in offers.items()}
            study.read = read or "0"
            until_ms = min(1000 * (now - KEEP_LETTERS_S), letter_order(study.read)[0])
            study.letters = [letter for letter in study.letters if letter_order(letter.id)[0] >= until_ms]

    def void(self, leases: Iterable[str]) -> None:
        with self._call("void") as server:
            study = self._owned(server)
            for lease in leases:
                study.held.pop(lease, None)
                study.ends.pop(lease, None)

    def expire(self) -> int:
        with self._call("expire") as server:
            study = self._owned(server)
            late = [lease for lease, end in study.ends.items() if end <= server.now]
            for lease in late:
                server.write(study, kind="expired", lease=lease)
                del study.held[lease], study.ends[lease]
            return len(late)

    def letters(self, after: str = "", wait_s: float = 0.0) -> list[Letter]:
        def found() -> list[Letter]:
            study = self._find(self._backend.server)
            letters = [] if study is None else study.letters
            return [letter for letter in letters if letter_order(letter.id) > letter_order(after or "0")]

        with self._call("letters") as server:
            server.changed.wait_for(found, wait_s)
            return found()[:BATCH]

    def close(self) -> None:
        with self._call("close") as server:
            self._owned(server).over_until = server.now + FORGET_S

    def drop(self) -> None:
        with self._call("drop") as server:
            over_until = server.now + FORGET_S
            server.studies[self._id] = _Study(token="", session="", until=0.0, over_until=over_until)

    def forget(self) -> None:
        with self._call("forget") as server:
            server.studies.pop(self._id, None)


class MemoryRegistry:
    """Implements `contracts.Registry`."""

    def __init__(self, backend: MemoryBackend) -> None:
        self._call = backend.call

    def beat(self, worker: WorkerInfo) -> float:
        with self._call("beat") as server:
            server.workers[worker.name] = replace(worker, last_beat=server.now)
            return server.now

    def leave(self, *worker_names: str) -> None:
        with self._call("leave") as server:
            for name in worker_names:
                server.workers.pop(name, None)
                server.inboxes.pop(name, None)

    def workers(self, *, all: bool = False) -> list[WorkerInfo]:
        with self._call("workers") as server:
            found = [replace(w, age_s=server.now - w.last_beat) for _, w in sorted(server.workers.items())]
            return [w for w in found if w.is_alive or (all and w.age_s <= FORGET_S)]

    def num_workers(self, now: float) -> int:
        with self._call("num_workers") as server:
            return sum(now - worker.last_beat < SILENT_S for worker in server.workers.values())

    def send(self, /, worker_names: Iterable[str] | None, op: Op, **more: Any) -> list[str]:
        chosen = [w.name for w in self.workers()] if worker_names is None else list(worker_names)
        with self._call("send") as server:
            for name in chosen:
                id, until = secrets.token_hex(8), server.now + COMMAND_S
                command = Command(op=op, to=name, until=until, id=id, **more)
                server.inboxes.setdefault(name, []).append(command)
        return chosen

    def receive(self, name: str) -> tuple[list[Command], int]:
        with self._call("receive") as server:
            found = server.inboxes.pop(name, [])
            return [command for command in found if command.until >= server.now], 0

    def advertise(self, study: StudyInfo) -> None:
        with self._call("advertise") as server:
            server.open_studies[study.study_id] = study
            server.open_work.pop(study.study_id, None)

    def withdraw(self, study_id: str, session: str = "") -> None:
        with self._call("withdraw") as server:
            study = server.open_studies.get(study_id)
            if study is not None and session in ("", study.session):
                del server.open_studies[study_id]
                server.open_work.pop(study_id, None)

    def studies(self) -> list[StudyInfo]:
        with self._call("studies") as server:
            return sorted(server.open_studies.values(), key=lambda study: study.published)

    def publish_work(self, study_id: str, work: Sequence[OpenWork]) -> None:
        with self._call("publish_work") as server:
            server.open_work[study_id] = list(work)

    def open_work(self) -> dict[str, list[OpenWork]]:
        with self._call("open_work") as server:
            return {id: work for id, work in server.open_work.items() if id in server.open_studies}

    def count(self, name: str, num: int = 1) -> None:
        with self._call("count") as server:
            server.counters[name] = server.counters.get(name, 0) + num


class MemoryCarrier:
    """Implements `contracts.Carrier`; `receive` is for the workers of a test."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queues: dict[str, deque[dict[str, str]]] = {}

    def send(self, queue: str, envelopes: Sequence[Mapping[str, str]], *, is_retry: bool = False) -> None:
        with self._changed:
            waiting = self._queues.setdefault(queue, deque())
            for envelope in envelopes:
                (waiting.appendleft if is_retry else waiting.append)(dict(envelope))
            self._changed.notify_all()

    def empty(self, queues: Iterable[str]) -> list[str]:
        with self._changed:
            return [queue for queue in queues if not self._queues.get(queue)]

    def receive(self, queue: str, wait_s: float = 0.0) -> dict[str, str] | None:
        """The next message of a queue; None if none arrives within `wait_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._queues.get(queue), wait_s)
            return self._queues[queue].popleft() if self._queues.get(queue) else None


def _implemented(backend: MemoryBackend, carrier: MemoryCarrier) -> tuple[Backend, Carrier]:
    """For the type checker."""
    return backend, carrier
