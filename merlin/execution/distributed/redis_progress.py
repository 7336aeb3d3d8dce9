"""Progress in Redis: any number of workers, one truth about who runs what. docs/progress-keys.md has the keys."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

from merlin.errors import ExecutionError, ProgressGoneError, StaleTicketError
from merlin.execution.distributed.entries import Damage, is_text, is_time, is_whole, parse_entry
from merlin.execution.distributed.graph import graph_of, opening_of
from merlin.execution.distributed.scripts import Scripts
from merlin.execution.distributed.settlement import settlement_of
from merlin.study.pieces import Run, merged
from merlin.study.plan import Plan
from merlin.study.runs import RunMap
from merlin.study.schedule import LEASE_S, LOSS_LIMIT, READY, Counts, Scheduler, Verdict
from merlin.study.tasks import Chunk, ChunkResult, Outcome

if TYPE_CHECKING:
    from redis import Redis

    from merlin.study.progress import Progress

TARGET_S = 3.0
KEYS = (
    *("meta", "graph", "inst", "runs", "ready", "active", "leases", "expiry", "queue", "deferred", "deaths"),
    *("tickets", "verdicts", "pending", "wanting", "counters", "settled"),
)
TOMBSTONE_S = 30 * 24 * 3600
STAGING_S = 600  # what an `open` that died leaves behind goes away after this
BATCH = 2000  # runs per command, verdicts per look

Level = Literal["retry", "run", "expand"]  # priorities of messages: highest, high, low
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A hint that work is ready; the body of a message. It can be used once, and losing it loses nothing."""

    id: str
    instance: str  # StepInstance.id
    lo: int  # hull of what was ready when it was issued
    hi: int
    num: int  # tasks that were ready or to run again
    level: Level


# what Python raises for an answer of which nothing can be made
SENSELESS = (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """A chunk that runs, and who runs it."""

    chunk: Chunk
    worker: str
    since: float  # server time
    expires_s: float  # from now; negative when the lease has run out


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyState:
    """The study as a whole."""

    state: Literal["running", "stopped", "complete", "gone", "dropped"]
    session: str = ""
    epoch: str = ""  # changes with every `open`
    reason: str = ""  # why it stopped or was dropped, or what became of it
    stop_now: bool = False
    created: float = 0.0  # server time of `open`
    now: float = 0.0  # server time
    num_running: int = 0  # chunks
    num_verdicts: int = 0  # not yet written
    wakeup_s: float | None = None  # seconds until the next deferred chunk may run
    has_work: bool = False  # something could be taken now


class RedisProgress:
    """Implements `merlin.study.progress.Progress`; times are the server's, `now` counts only with clock="caller".

    Threads may share one. A call that was answered has happened as a whole, whatever dies next; one that was not
    answered may have happened, and may be repeated: work that nobody knows of comes back when its lease runs out,
    and the same report about a chunk, repeated within minutes, is answered as the first one was and does nothing.

    Every method raises, all of them ExecutionErrors:
        ProgressGoneError: the server has lost the study, or has it as it was before; or it was dropped, and then
            `error.reason` says why. Open it again from the ledger, but not what was dropped.
        ExecutionError: what Redis holds of the study makes no sense: somebody else has written into it.
        ProgressFullError: the server is out of memory; nothing was changed.
        ProgressUnreachableError: the server does not answer.
    """

    def __init__(
        self,
        client: Redis,
        namespace: str,
        plan: Plan,
        *,
        lease_s: float = LEASE_S,
        target_s: float = TARGET_S,
        clock: Literal["server", "caller"] = "server",
    ) -> None:
        self._client = client
        self._plan = plan
        self._graph = graph_of(plan)
        self._lease_s, self._target_s = lease_s, target_s
        self._is_callers_clock, self._now = clock == "caller", 0.0
        self._scripts = Scripts(client)
        self._prefix = (
            f"merlin:{namespace}:{{{plan.study_id}}}:"  # the braces keep a study on one cluster node
        )
        self.keys = [self._prefix + name for name in KEYS]
        self._lock = threading.Lock()
        self._seen = ("", 0)  # epoch and revision of the latest reply
        self._damage = Damage()

    @contextmanager
    def _reporting_damage(self) -> Iterator[None]:
        """Whatever cannot be made of an answer is an ExecutionError."""
        try:
            yield
        except SENSELESS as error:
            raise ExecutionError(
                f"the progress of study {self._plan.study_id} on {self._scripts.place} is damaged "
                f"({type(error).__name__}: {str(error)[:100]!a}): merlin cancel ends it, and merlin restart "
                "publishes it again from its ledger"
            ) from error

    # --------------------------------------------------------------- the study

    def open(
        self,
        outcomes: Mapping[str, RunMap],
        *,
        session: str,
        first_attempt: int,
        num_workers_hint: int = 2,
        only_if_gone: bool = False,
        now: float | None = None,
    ) -> bool:
        """Put the study's progress into Redis, replacing what was there: leases and tickets of before are void.

        False, and nothing is changed, if `only_if_gone` and the study is there (or was dropped).
        """
        scheduler = Scheduler(self._plan, outcomes, num_workers=num_workers_hint, first_attempt=first_attempt)
        opening = opening_of(self._plan, self._graph, scheduler)
        meta: Json = {
            "epoch": secrets.token_hex(8),
            "session": session,
            "study": self._plan.study_id,
            "first_attempt": first_attempt,
            "workers": max(1, num_workers_hint),
            "num_open": opening.num_open,
            "num_tasks": self._graph.num_tasks,
        }
        args: Json = {
            "only_if_gone": only_if_gone,
            "seen": self._seen,
            "meta": meta,
            "graph": {str(i): compact_json(d) for i, d in enumerate(self._graph.descriptions)},
            "insts": opening.insts,
            "active": opening.active,
            "verdicts": opening.verdicts,
        }
        staged = [f"{self._prefix}{name}.{meta['epoch']}" for name in ("runs", "ready")]
        self._scripts.call(lambda: self._stage(staged, opening.runs(self._graph)))
        self._tell_time(now)
        return bool(self._scripts.run("open", self.keys + staged, self._time(), args)["opened"])

    def _stage(self, keys: list[str], runs: Iterator[Run]) -> None:
        """Write all runs under names that nobody reads yet."""
        try:
            for batch in _batches(runs, BATCH):
                pipe = self._client.pipeline(transaction=False)
                members = {f"{lo}:{hi}:{state}": lo for lo, hi, state in batch}
                ready = {f"{lo}:{hi}:{state}": lo for lo, hi, state in batch if state == READY}
                for key, some in zip(keys, (members, ready), strict=True):
                    if some:
                        pipe.zadd(key, some)
                        pipe.expire(key, STAGING_S)
                pipe.execute()
        except Exception:
            self._client.delete(*keys)
            raise

    def exists(self) -> bool:
        return self.state().state not in ("gone", "dropped")

    def state(self) -> StudyState:
        """In one round trip; never raises ProgressGoneError."""
        seen = self._seen
        reply = self._scripts.run("state", self.keys, self._time(), {})
        if _is_older(reply, seen):
            return StudyState(state="gone", reason=_went_back(reply, seen))
        if "gone" in reply:
            reason = reply["gone"]
            return StudyState(state="dropped" if reason else "gone", reason=reason or _why_gone(reply))
        with self._reporting_damage():
            meta = _pairs(reply["meta"])
            stop_reason = meta.get("stop_reason", "")
            state: Literal["complete", "stopped", "running"] = "stopped" if stop_reason else "running"
            due = reply.get("due")
            return StudyState(
                state="complete" if meta["num_open"] == "0" else state,
                session=meta["session"],
                epoch=meta["epoch"],
                reason=stop_reason,
                stop_now="stop_now" in meta,
                created=float(meta["created"]),
                now=reply["now"],
                num_running=reply["num_running"],
                num_verdicts=reply["num_verdicts"],
                wakeup_s=None if due is None else max(0.0, float(due) - reply["now"]),
                has_work=reply["has_work"],
            )

    @property
    def epoch(self) -> str:
        return str(self._look("state")["epoch"])

    def _meta(self) -> dict[str, str]:
        reply = self._look("state")
        with self._reporting_damage():
            meta = _pairs(reply["meta"])
            return meta | {name: meta[name] for name in ("session", "num_open")}  # they must be there

    @property
    def session(self) -> str:
        return self._meta()["session"]

    def drop(self, reason: Literal["purged", "cancelled"]) -> bool:
        """Forget the study, but for a tombstone that says why. Whether it was there."""
        args = {"reason": reason, "keep_s": TOMBSTONE_S}
        return bool(self._scripts.run("drop", self.keys, self._time(), args)["was_there"])

    # ----------------------------------------------------------------- tickets

    def tickets(
        self, max_outstanding: int, num_workers: int = 0, *, limit: int = 1000, now: float | None = None
    ) -> list[Ticket]:
        """Issue tickets (at most `limit`) for work that no outstanding ticket covers; publish them."""
        self._tell_time(now)
        reply = self._do(
            "tickets",
            max_outstanding=max_outstanding,
            workers=num_workers,
            limit=limit,
            token=secrets.token_hex(8),
        )
        with self._reporting_damage():
            return [
                Ticket(
                    id=t["id"],
                    instance=self._id(t["i"]),
                    lo=t["lo"],
                    hi=t["hi"],
                    num=t["num"],
                    level=t["level"],
                )
                for t in reply["tickets"]
            ]

    def take_ticket(
        self, ticket_id: str, *, worker: str, num_workers: int = 0, now: float | None = None
    ) -> Chunk | None:
        """Use a ticket up: the next chunk of its instance, or None when that has nothing ready any more.

        Raises StaleTicketError if the ticket is unknown or was used (and counts it as a duplicate).
        """
        self._tell_time(now)
        return self._take(worker=worker, workers=num_workers, ticket=ticket_id)

    def take_among(self, instances: Iterable[str], *, worker: str, num_workers: int = 0) -> Chunk | None:
        """The next chunk of these instances, without a ticket; None when they have nothing ready."""
        among = [self._number(i) for i in instances]
        return self._take(worker=worker, workers=num_workers, among=among) if among else None

    def reissue(
        self, quiet_s: float, instances: Iterable[str] | None = None, *, now: float | None = None
    ) -> list[str]:
        """Forget the tickets of instances with work of which nothing was taken or issued for `quiet_s`.

        Only of `instances`, if they are given. Returns those it was; `tickets` issues for them again.
        """
        self._tell_time(now)
        among = {} if instances is None else {"among": [self._number(i) for i in instances]}
        found = self._do("reissue", quiet_s=quiet_s, **among)["instances"]
        with self._reporting_damage():
            return [self._id(i) for i in found]

    # ---------------------------------------------------------------- counters

    def count(self, name: str, num: int = 1) -> None:
        """Add to one of the study's counters."""
        self._scripts.call(lambda: self._client.hincrby(self._prefix + "counters", name, num))

    def counters(self) -> dict[str, int]:
        """Since the study was first opened: duplicates, expired, losses, crashes, retries, tickets_lost …"""
        found = self._scripts.call(lambda: self._client.hgetall(self._prefix + "counters"))
        with self._reporting_damage():
            return {_text(name): int(value) for name, value in found.items()}

    # ------------------------------------------------------------------- events

    def take(self, now: float = 0.0, instance: str | None = None, *, worker: str = "") -> Chunk | None:
        """The next chunk to run (of `instance`), or None when nothing is ready or the study stops."""
        self._tell_time(now)
        number = None if instance is None else self._number(instance)
        return self._take(worker=worker, workers=0, instance=number)

    def finished(self, result: ChunkResult, now: float = 0.0) -> bool:
        """The holder has ended the chunk; tasks it does not report are run again. False: the lease is not held."""
        self._tell_time(now)
        chunk = result.chunk
        settled = settlement_of(chunk, result.runs, [later.chunk for later in result.deferred])
        again = [replace(rest, attempt=chunk.attempt + 1) for rest in settled.rest]
        later = [
            {"chunk": self._chunk_json(replace(d.chunk, attempt=chunk.attempt + 1)), "delay_s": d.delay_s}
            for d in result.deferred
        ]
        learn = None
        if not (again or chunk.isolate):
            learn = {"num": settled.num_tasks, "busy_s": result.busy_s, "target_s": self._target_s}
        return self._settle(
            "finished",
            chunk,
            runs=settled.runs,
            again=[self._chunk_json(c) for c in again],
            later=later,
            learn=learn,
            stop=result.stop,
            note=result.note,
            judge_failures=True,
            counts={"retries": settled.num_deferred} if later else {},
        )

    def lost(
        self,
        chunk: Chunk,
        done: Iterable[Run],
        now: float = 0.0,
        *,
        signal: str = "",
        infrastructure: bool = False,
    ) -> bool:
        """The chunk's worker is gone; `done` is what it left in the ledger. False: the lease is not held."""
        self._tell_time(now)
        settled = settlement_of(chunk, done, [])
        again, alone = [], None
        for part in settled.halves():
            lost = replace(part, attempt=chunk.attempt + 1)
            if settled.num_left > 1:
                again.append(self._chunk_json(lost))
                continue
            alone = {
                "chunk": self._chunk_json(replace(lost, isolate=True)),
                "task": lost.task_ids()[0],
                "infrastructure": infrastructure,
                "signal": signal,
            } | ({"limit": LOSS_LIMIT} if infrastructure else {})
        return self._settle(
            "lost",
            chunk,
            runs=settled.runs,
            again=again,
            alone=alone,
            counts={"losses" if infrastructure else "crashes": 1},
        )

    def give_back(self, chunk: Chunk) -> bool:
        """The chunk was not started; it waits again as it was. False: the lease is not held."""
        return self._settle("given_back", chunk, runs=[], again=[self._chunk_json(chunk)])

    def beat(self, chunks: Iterable[Chunk], now: float = 0.0) -> list[Chunk]:
        """Renew the leases of chunks that run; returns those that are not held any more."""
        self._tell_time(now)
        held = {chunk.lease: chunk for chunk in chunks}
        if not held:
            return []
        lost = self._do("beat", leases=list(held), lease_s=self._lease_s)["lost"]
        return [held[lease] for lease in lost]

    def expired(self, now: float = 0.0, *, worker: str = "", limit: int = 100) -> list[Chunk]:
        """Take over chunks whose lease ran out, under new leases; call `lost` for each of them.

        No more than `limit` at once: what is taken over here must be dealt with within one lease.
        """
        self._tell_time(now)
        reply = self._do(
            "expired", token=secrets.token_hex(8), lease_s=self._lease_s, worker=worker, limit=limit
        )
        out = []
        for taken in reply["taken"]:
            with self._skipping_damage(f"lease {taken['lease']}"):
                out.append(self._chunk(taken["chunk"], taken["lease"]))
        return out

    def fail(self, instances: Collection[str], cause: str) -> int:
        """End all tasks of these step instances that have not ended, running ones too, as FAILED; their number.

        Leases on them are void, and what depends on them is skipped or goes on, as `on_failure` says.
        """
        numbers = sorted({self._number(instance) for instance in instances})
        return int(self._do("fail", instances=numbers, cause=cause)["num"])

    def stop(self, reason: str, *, now: bool = False) -> None:
        """Hand out nothing more; with `now`, running tasks are to be interrupted. The first reason stays."""
        self._do("stop", reason=reason, now=now)

    # --------------------------------------------------------------- answers

    @property
    def stop_reason(self) -> str:
        return self._meta().get("stop_reason", "")

    @property
    def stop_now(self) -> bool:
        return "stop_now" in self._meta()

    def verdicts(self) -> list[Verdict]:
        """Outcomes decided here and not yet `written`."""
        out: list[Verdict] = []
        while True:
            after = out[-1].id.partition(".")[2] if out else "0"
            page = self._look("verdicts", limit=BATCH, after=after)["verdicts"]
            num = len(out)
            for text in page:
                with self._skipping_damage("a verdict"):
                    out.append(self._verdict(text))
            if len(page) < BATCH or len(out) == num:
                return out

    def written(self, verdicts: Sequence[Verdict]) -> None:
        """The ledger has these verdicts; forget exactly them."""
        by_epoch: dict[str, list[tuple[int, int]]] = {}
        for verdict in verdicts:
            epoch, _, order = verdict.id.partition(".")
            by_epoch.setdefault(epoch, []).append((int(order), int(order) + 1))
        for epoch, orders in by_epoch.items():
            ranges = [(first, last - 1) for first, last in merged(orders)]
            self._do("verdicts", written=ranges, epoch=epoch)

    def next_wakeup(self) -> float | None:
        """When the earliest deferred chunk may run, in server time; see `StudyState.wakeup_s`."""
        reply = self._look("state")
        due = reply.get("due")
        return None if due is None or "stop_reason" in _pairs(reply["meta"]) else float(due)

    def counts(self) -> dict[str, Counts]:
        """Tasks by state, per step instance."""
        reply = self._look("counts")
        with self._reporting_damage():
            found = _pairs(reply["insts"])
            out = {}
            for id, i in self._graph.indices.items():
                have = json.loads(found[str(i)])
                have.setdefault("soft_failed", 0)  # an earlier version may have opened the study
                have["failed"] += have["soft_failed"]
                names = [f.name for f in fields(Counts) if f.name != "planned"]
                out[id] = Counts(
                    planned=self._plan.instances[i].num_tasks, **{name: have[name] for name in names}
                )
            return out

    def holdings(self) -> list[Holding]:
        """Every chunk that runs, and who runs it."""
        reply = self._look("leases")
        with self._reporting_damage():
            expiry, leases = _pairs(reply["expiry"]), _pairs(reply["leases"])
        out = []
        for lease, text in leases.items():
            with self._skipping_damage(f"lease {lease}"):
                out.append(self._holding(lease, text, float(expiry[lease]) - reply["now"]))
        return sorted(out, key=lambda h: h.since)

    def _holding(self, lease: str, text: str, expires_s: float) -> Holding:
        entry = parse_entry(text)
        if not (is_text(entry["worker"]) and is_time(entry["since"])):
            raise ValueError("its worker or its time cannot be")
        return Holding(
            chunk=self._chunk(entry["chunk"], lease),
            worker=entry["worker"],
            since=entry["since"],
            expires_s=expires_s,
        )

    @property
    def is_complete(self) -> bool:
        """Every task has an outcome."""
        return self._meta()["num_open"] == "0"

    @property
    def num_running(self) -> int:
        """Chunks handed out and not ended."""
        return int(self._look("state")["num_running"])

    # ---------------------------------------------------------------- one call

    def _take(self, **args: Any) -> Chunk | None:
        lease = secrets.token_hex(8)
        reply = self._do("take", lease=lease, lease_s=self._lease_s, **args)
        if "stale" in reply:
            raise StaleTicketError(
                f"ticket {args['ticket']} of study {self._plan.study_id} was used before, or is of an earlier run"
            )
        with self._reporting_damage():
            return self._chunk(reply["chunk"], reply["lease"]) if "chunk" in reply else None

    def _settle(self, op: str, chunk: Chunk, **args: Any) -> bool:
        defaults: Json = {"later": [], "stop": "", "note": "", "judge_failures": False, "counts": {}}
        lease = {"op": op, "lease": chunk.lease, "chunk": self._chunk_json(chunk)}
        reply = self._do("settle", **(defaults | lease | args))
        if "bug" in reply:
            raise ExecutionError(reply["bug"])
        return bool(reply["held"])

    def _do(self, name: str, **args: Any) -> Json:
        """Run an operation, and what follows from it as far as one call may not go."""
        reply = self._look(name, **args)
        more = reply
        while more.get("more"):
            more = self._look("go_on")
        return reply

    def _look(self, name: str, **args: Any) -> Json:
        seen = self._seen
        reply: Json = self._scripts.run(name, self.keys, self._time(), args)
        if "gone" in reply:
            reason = reply["gone"]
            what = f"was {reason}" if reason else _why_gone(reply)
            raise ProgressGoneError(f"study {self._plan.study_id} on {self._scripts.place}: {what}", reason)
        if _is_older(reply, seen):
            what = _went_back(reply, seen)
            raise ProgressGoneError(f"study {self._plan.study_id} on {self._scripts.place}: {what}")
        now_seen = (reply["epoch"], reply["revision"])
        with self._lock:
            if now_seen[0] != self._seen[0] or now_seen[1] > self._seen[1]:
                self._seen = now_seen
        return reply

    def _tell_time(self, now: float | None) -> None:
        if now is not None:
            self._now = now

    def _time(self) -> float | None:
        return self._now if self._is_callers_clock else None

    # ------------------------------------------------------------- translation

    @contextmanager
    def _skipping_damage(self, what: str) -> Iterator[None]:
        """An entry of which nothing can be made costs itself."""
        try:
            yield
        except SENSELESS as error:
            self._damage.note(f"study {self._plan.study_id}: {what}", repr(error))

    def _id(self, i: object) -> str:
        if not is_whole(i):
            raise ValueError(f"no number of a step instance: {i!r}")
        return self._plan.instances[i].id

    def _number(self, instance: str) -> int:
        try:
            return self._graph.indices[instance]
        except KeyError:
            raise ExecutionError(f"the plan has no step instance '{instance}'") from None

    def _verdict(self, text: str) -> Verdict:
        data = _with_tasks(parse_entry(text))
        return Verdict(
            instance=self._id(data["i"]),
            lo=data["lo"],
            hi=data["hi"],
            outcome=Outcome(data["outcome"]),
            cause=data["cause"],
            attempt=data["attempt"],
            id=data["id"],
        )

    def _chunk_json(self, chunk: Chunk) -> Json:
        """What differs from the defaults, with the instance's number."""
        out: Json = {
            "i": self._number(chunk.instance),
            "lo": chunk.lo,
            "hi": chunk.hi,
            "attempt": chunk.attempt,
        }
        for name in ("holes", "retries", "use_restart", "isolate", "absent_rows"):
            if value := getattr(chunk, name):
                out[name] = value
        return out

    def _chunk(self, data: Json, lease: str) -> Chunk:
        _with_tasks(data)
        pairs = {name: tuple((a, b) for a, b in data.get(name, ())) for name in ("holes", "absent_rows")}
        rest = {name: value for name, value in data.items() if name != "i"}
        return Chunk(**(rest | pairs | {"instance": self._id(data["i"]), "lease": lease}))


def compact_json(data: Json) -> str:
    return json.dumps(data, separators=(",", ":"))


def _batches(runs: Iterator[Run], size: int) -> Iterator[list[Run]]:
    while batch := list(islice(runs, size)):
        yield batch


def _why_gone(reply: Json) -> str:
    if reply.get("restarted"):
        return "the server has restarted without an append-only file, so what it holds may be old"
    return "the server does not have it (any more)"


def _is_older(reply: Json, seen: tuple[str, int]) -> bool:
    return bool(reply.get("epoch") == seen[0] and reply.get("revision", seen[1]) < seen[1])


def _went_back(reply: Json, seen: tuple[str, int]) -> str:
    return f"the server has gone back from revision {seen[1]} to {reply['revision']}, as after a restart"


def _with_tasks(data: Json) -> Json:
    """A chunk or a verdict that says which tasks it is of. Raises what is SENSELESS."""
    if not all(is_whole(data[name]) for name in ("lo", "hi", "attempt")):
        raise ValueError("its tasks cannot be")
    return data


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _pairs(flat: Sequence[Any]) -> dict[str, str]:
    """What HGETALL gives a script: names and values in turn."""
    return {str(flat[i]): str(flat[i + 1]) for i in range(0, len(flat), 2)}


if TYPE_CHECKING:

    def _both(memory: Scheduler, redis: RedisProgress) -> tuple[Progress, Progress]:
        return memory, redis
