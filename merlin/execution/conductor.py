"""Connects the scheduler of a run with the ledger: it reads outcomes and records decisions.

The executors, which own processes or messages, call this module. It starts no process itself.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.ranges import Range, merged
from merlin.base.records import to_plain
from merlin.errors import ExecutionError
from merlin.execution.wire import received
from merlin.ledger.collect_again import to_collect_again
from merlin.ledger.lost_outcomes import resets_after_loss, told
from merlin.ledger.records import RESET, EventRecord, RangeRecord, Record
from merlin.ledger.replay import Replay, replay
from merlin.ledger.resets import resets
from merlin.ledger.session import next_session
from merlin.ledger.writer import LedgerWriter
from merlin.plan.durations import Spread, added, spread_of
from merlin.plan.failure_limits import with_max_failures
from merlin.plan.memories import Death, Deferral
from merlin.plan.plan import Plan
from merlin.plan.reopen import NOTHING, Again, reopen
from merlin.plan.restrict import restrict
from merlin.plan.schedule import Scheduler
from merlin.plan.task_states import TaskCounts, sum_by_step
from merlin.plan.tasks import FAILURES, NO_OUTCOME, Chunk, ChunkResult, Outcome
from merlin.workspace.directory import Workspace

CONTROLLER = "controller"  # its name as a writer of the ledger
UPDATER = "updater"  # the name of a command that gives the study another revision, which runs no tasks
QUARANTINED = "node_quarantined"  # the event that a node gets nothing more of this run
MEMORY = "memory"  # the event with the scheduler's state that outcomes do not contain


class RunOptions(Struct, frozen=True, kw_only=True):
    """How to run a study."""

    workers: int | None = None  # default: the cores this process may use
    again: Again = NOTHING  # tasks that run again although they have ended
    only: tuple[str, ...] | None = None  # step instances to run; the sources of the others have ended
    max_failures: float | None = None  # in place of the plan's, for steps that have one; infinite: no limit
    grace_s: float = 5.0  # for workers to end after a stop; then they are killed
    may_fork: bool = True  # workers may begin as copies of this process; not in a program of somebody else


def memory_records(memories: Iterable[Deferral | Death]) -> list[EventRecord]:
    """The state of a scheduler that outcomes do not contain, as at most one event of the ledger."""
    data: dict[str, list[Any]] = {"deferred": [], "deaths": []}
    for memory in memories:
        if isinstance(memory, Death):
            data["deaths"].append([memory.instance, memory.task, memory.infrastructure, memory.lease])
        else:
            data["deferred"].append([to_plain(memory.chunk), memory.not_before])
    return [EventRecord(kind=MEMORY, data=data)] if any(data.values()) else []


def memories_of(found: Replay, session: str) -> list[Deferral | Death]:
    """The state that the schedulers of one run have recorded, in order."""
    out: list[Deferral | Death] = []
    for event in found.events(session):
        if event.kind == MEMORY:
            out += [
                Death(instance=i, task=t, infrastructure=lost, lease=lease)
                for i, t, lost, lease in event.data["deaths"]
            ]
            out += [Deferral(chunk=received(c, Chunk), not_before=at) for c, at in event.data["deferred"]]
    return out


def durations_of(found: Replay, plan: Plan) -> dict[str, Spread]:
    """How long the tasks of each step took, from the headers of the ledger's records: a long task has its own."""
    spreads: dict[str, list[Spread]] = {}
    for instance in plan.instances:
        headers = (entry.header for entry in found.entries(instance.id))
        timed = ((h.elapsed_s, h.counts[Outcome.OK] + h.counts[Outcome.FAILED]) for h in headers)
        spread = spread_of((seconds / num, num) for seconds, num in timed if num and seconds > 0)
        spreads.setdefault(instance.step, []).append(spread)
    return {step: added(several) for step, several in spreads.items()}


def next_attempt(found: Replay, session: str) -> int:
    """An attempt number greater than those of the run's interrupted tasks, and of its resets."""
    headers = (e.header for e in found.entries() if e.writer.session == session)
    outranked = (h.attempt for h in headers if h.counts[Outcome.INTERRUPTED] or h.outcome == RESET)
    return 1 + max(outranked, default=0)


def quarantined_nodes(found: Replay, session: str = "") -> dict[str, str]:
    """The nodes that the owners of one run, or of the last, have found to be bad, and the steps that showed it."""
    nodes: dict[str, str] = {}
    for event in found.events(session):
        if event.kind == "run_started":
            nodes = {}
        elif event.kind == QUARANTINED:
            nodes[str(event.data["node"])] = str(event.data.get("step", ""))
    return nodes


def append_records(workspace: Workspace, session: str, *records: Record) -> None:
    """Append all or none of these records, for a run without a conductor."""
    study_id = workspace.plan.study_id
    with LedgerWriter(workspace.ledger_dir, CONTROLLER, session=session, study_id=study_id) as ledger:
        ledger.append(*records)


class Conductor:
    """One run of a study. It reads the ledger at the start and after losses, and writes the run's own records.

    The ledger writers of all workers of this run need its `session`.
    """

    def __init__(self, workspace: Workspace, session: str = "") -> None:
        """Begin a run, or with `session` continue one."""
        self._workspace = workspace
        self.session = session or next_session(workspace.ledger_dir, time.time())
        self._ledger = LedgerWriter(
            workspace.ledger_dir,
            CONTROLLER,
            session=self.session,
            study_id=workspace.plan.study_id,
            sync=bool(session),  # only other machines must see these records soon
        )
        self._unwritten: list[Record] = []
        self._replay: Replay | None = None

    def open(self, options: RunOptions, num_workers: int) -> str:
        """Read the ledger and decide what must run; returns a line for the user if the ledger has lost outcomes."""
        plan, found = self._workspace.plan, self.read()
        after_loss = resets_after_loss(found, plan)
        if options.again or after_loss:
            again = resets(options.again.to_reset(plan, found.outcomes))
            self._ledger.append(*again, *after_loss)  # all or none
            self.read()
        if options.only is not None:
            plan = restrict(plan, options.only)
        if options.max_failures is not None:
            plan = with_max_failures(plan, options.max_failures)
        self.scheduler = Scheduler(
            plan,
            found.outcomes,
            num_workers=num_workers,
            name=f"{secrets.token_hex(4)}.",
            collect_only=to_collect_again(found, plan),
        )
        self.scheduler.know_durations(durations_of(found, plan))
        self.flush()
        return told(after_loss)

    def read(self) -> Replay:
        """The ledger as it is now."""
        if self._replay is None:
            self._replay = replay(self._workspace.ledger_dir, self._workspace.plan)
        else:
            self._replay.update()
        return self._replay

    def run_again(self, failed: Mapping[str, list[Range]], taken: Mapping[str, list[Range]]) -> None:
        """Let failed tasks run again, with all that follows from them; also tasks of chunks taken from workers.

        `taken` are the tasks of those chunks; of these, the ones that ended ok stay. What earlier attempts still write
        does not count.
        """
        found = self.read()
        chosen = {id: list(ranges) for id, ranges in failed.items()}
        for id, ranges in taken.items():  # failures that are recorded, but will not be reported
            have = found.outcomes_of(id)
            chosen.setdefault(id, []).extend(r for a, b in ranges for r in have.ranges(FAILURES, a, b))
        again = reopen(self._workspace.plan, found.outcomes, {id: merged(of) for id, of in chosen.items()})
        for id, ranges in taken.items():
            have = found.outcomes_of(id)
            missing = [r for a, b in ranges for r in have.ranges((NO_OUTCOME, Outcome.INTERRUPTED), a, b)]
            again[id] = merged([*again.get(id, ()), *missing])
        attempt = 1 + max((e.header.attempt for e in found.entries()), default=0)
        self._unwritten += resets(again, attempt=attempt)

    def done(self, chunk: Chunk) -> tuple[tuple[int, int, int], ...]:
        """Read the ledger, and return its outcomes of the chunk's tasks as (lo, hi, outcome)."""
        self.read()
        return self.known(chunk)

    def known(self, chunk: Chunk) -> tuple[tuple[int, int, int], ...]:
        """The same as `done`, without reading the ledger again."""
        assert self._replay is not None
        runs = self._replay.outcomes_of(chunk.instance).runs(chunk.lo, chunk.hi)
        return tuple(run for run in runs if run[2] != NO_OUTCOME)

    def lost(self, chunk: Chunk, now: float, *, crash: str = "", tail: str = "") -> None:
        """Handle the loss of the chunk's worker. `crash` says how it died; it is "" if we ended it ourselves.

        `tail` is what it said then.
        """
        done = self.done(chunk)
        if crash:
            held = self.scheduler.lost(chunk, done, signal=crash, tail=tail)
        else:
            held = self.scheduler.finished(ChunkResult(chunk=chunk, runs=done), now)
        self._require_held(chunk, held)
        self.flush()

    def finished(self, result: ChunkResult, now: float) -> None:
        self._require_held(result.chunk, self.scheduler.finished(result, now))
        self.flush()

    def _require_held(self, chunk: Chunk, held: bool) -> None:
        """Raise ExecutionError if the lease was not held. Nobody else takes leases here, so that is a bug."""
        if not held:
            story = self.scheduler.story(chunk.instance, chunk.lo)
            raise ExecutionError(f"a chunk ended that does not run: {chunk}; {story}")

    def event(self, kind: str, **data: Any) -> None:
        """Record an event of the run."""
        self.note(kind, **data)
        self._write()

    def note(self, kind: str, **data: Any) -> None:
        """Add an event that is written with the next records."""
        self._unwritten.append(EventRecord(kind=kind, data=data))

    def flush(self) -> None:
        """Write the scheduler's decisions. Records that cannot be written are kept for the next call."""
        self.has_unwritten()
        self._write()

    def has_unwritten(self) -> bool:
        """Return whether there are records to write."""
        self._unwritten += [
            RangeRecord(
                instance=v.instance,
                lo=v.lo,
                hi=v.hi,
                outcome=v.outcome,
                cause=v.cause,
                tail=v.tail,
                attempt=v.attempt,
            )
            for v in self.scheduler.decided_outcomes()
        ]
        self._unwritten += memory_records(self.scheduler.memories())
        return bool(self._unwritten)

    def _write(self) -> None:
        if self._unwritten:
            self._ledger.append(*self._unwritten)
            self._unwritten.clear()

    def per_step(self, in_flight: Mapping[str, tuple[int, int]] | None = None) -> dict[str, TaskCounts]:
        """Counts per step, over its instances; `in_flight`: (ended, failed) as running chunks report."""
        counts = self.scheduler.counts()
        for id, (ended, failed) in (in_flight or {}).items():
            have = counts[id]
            ended = min(ended, have.running)
            failed = min(failed, ended)
            ok = have.ok + ended - failed
            counts[id] = replace(have, ok=ok, failed=have.failed + failed, running=have.running - ended)
        return sum_by_step(self.scheduler.plan, counts)

    def close(self) -> None:
        self._ledger.close()
