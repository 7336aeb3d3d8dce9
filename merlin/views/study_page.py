"""One study with its extensions, as a page shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct

from merlin.errors import LedgerError, MerlinError, WorkspaceError
from merlin.execution.job_counts import StepJobCounts
from merlin.status.eta import Eta
from merlin.status.snapshot import Snapshot, is_published, snapshot_of
from merlin.status.whole_study import state_of
from merlin.views.at_work import QueueLine, WorkerLine
from merlin.views.obstacle import Obstacle
from merlin.views.step_lines import (
    NOTHING,
    DataSetLine,
    SamplesLine,
    StepEdge,
    StepLine,
    data_set_lines,
    samples_line,
    step_edges,
    step_lines,
    sum_of,
    total_line,
)
from merlin.views.study_ledgers import Member, StudyLedgers
from merlin.views.study_state import activity_of
from merlin.views.surroundings import FileFacts, ServerFacts, Surroundings
from merlin.views.team import team_of
from merlin.views.throughput import Throughput
from merlin.views.training_runs import RunLine
from merlin.views.worker_jobs import JobLine
from merlin.workspace.directory import study_name_of

StudyState = Literal["new", "running", "stalled", "unknown", "finished", "failed", "stopped", "unreadable"]


class StudyPage(Struct, frozen=True, kw_only=True):
    """A study at one moment.

    state: as a snapshot's; `running` only if somebody works on it, or would at once; `unreadable` if there can be no
    snapshot. `state_reason` says why it is not simply running or finished.
    """

    id: str
    name: str
    description: str = ""
    workspace: str
    state: StudyState
    state_reason: str
    executor: str = ""  # local, workers or ""
    owner: str = ""  # who decides now: the name of a worker, "pid N on host", or ""
    now: float
    started: float | None = None
    ended: float | None = None
    elapsed_s: float = 0.0
    totals: StepLine = NOTHING
    steps: tuple[StepLine, ...] = ()
    edges: tuple[StepEdge, ...] = ()
    eta: Eta | None = None
    rate: float | None = None
    workers: tuple[WorkerLine, ...] = ()
    num_slots: int = 0
    jobs: tuple[JobLine, ...] = ()  # batch jobs that workers live in
    step_jobs: tuple[StepJobCounts, ...] = ()  # batch jobs that steps have of their own
    queues: tuple[QueueLine, ...] = ()
    obstacles: tuple[Obstacle, ...] = ()
    notes: tuple[str, ...] = ()
    data_sets: tuple[DataSetLine, ...] = ()
    runs: tuple[RunLine, ...] = ()
    num_failures: int = 0
    samples: SamplesLine | None = None
    extensions: tuple[str, ...] = ()  # "extensions/001"
    ledger_bytes: int = 0
    damage: tuple[str, ...] = ()


class StudyView:
    """One study with its extensions, followed over time. Any thread may use it: a lock lets one in at a time."""

    def __init__(self, path: Path, *, id: str = "") -> None:
        """Reads nothing yet. `id`: what it is called in addresses; by default the name of its directory."""
        self.path, self.id = path, id or path.name
        self._lock = threading.RLock()
        self._ledgers = StudyLedgers(path)
        self._around: Surroundings | None = None
        self._state: StudyState | None = None  # of the last look

    @contextmanager
    def ledgers(self) -> Iterator[StudyLedgers]:
        """The ledgers as they are now, locked for others meanwhile. Raises WorkspaceError and LedgerError."""
        with self._lock:
            self._ledgers.update()
            try:
                yield self._ledgers
            except LedgerError:  # the ledger has changed while it was read
                self._ledgers.forget()
                raise

    def look(self, now: float | None = None) -> StudyPage:
        """The study now. It never raises because of the study: what cannot be read is `unreadable`.

        What servers and schedulers know is asked in the background, so it may be some seconds old.
        """
        at = time.time() if now is None else now
        try:
            with self.ledgers() as ledgers:
                page = self._look(ledgers.members, at)
        except MerlinError as error:
            page = _unreadable(self.path, self.id, str(error), at)
        self._state = page.state
        return page

    def _look(self, members: list[Member], now: float) -> StudyPage:
        around = self._surroundings(members)
        seen = _Seen(members=members, around=around, files=around.files(), now=now)
        page = _page(self.id, seen, [_snapshot(member, seen) for member in members])
        if page.state != self._state:
            around.ask_again()
        return page

    def _surroundings(self, members: list[Member]) -> Surroundings:
        if self._around is None or not self._around.are_of(members):
            self._around = Surroundings([member.workspace for member in members])
        return self._around

    def throughput(self) -> Throughput:
        """How many tasks have ended when.

        Raises LedgerError and WorkspaceError for a study that cannot be read, as all of the following do.
        """
        with self.ledgers() as ledgers:
            return ledgers.bars.throughput()

    def data_set(self, key: str) -> Path:
        """The directory of a finished data set. Raises WorkspaceError if the study has none with this key."""
        lines = self.look().data_sets
        return _with_key(self.path, key, {line.key: line.path for line in lines}, "finished data set")

    def training_run(self, key: str) -> Path:
        """The directory of a training run. Raises WorkspaceError if the study has none with this key."""
        lines = self.look().runs
        return _with_key(self.path, key, {line.key: line.path for line in lines}, "training run")


class _Seen(Struct, frozen=True, kw_only=True):
    """What one look has found."""

    members: list[Member]
    around: Surroundings
    files: FileFacts
    now: float

    def step_jobs(self, member: Member) -> tuple[StepJobCounts, ...]:
        return self.files.step_jobs.get(member.name, ())

    @property
    def servers(self) -> ServerFacts | None:
        """What the servers say of a study that workers have, and which has work left; else they are not asked."""
        theirs = (m for m in self.members if m.num_missing and is_published(m.facts))
        return self.around.servers() if any(theirs) else None


def _snapshot(member: Member, seen: _Seen) -> Snapshot:
    jobs = seen.step_jobs(member)
    activity, workers = activity_of(member, seen.around, sum(each.running for each in jobs), seen.now)
    open_jobs = {each.instance: each.pending + each.running for each in jobs}
    return snapshot_of(
        member.workspace, member.facts, activity, seen.now, workers=workers, step_jobs=open_jobs
    )


def _page(id: str, seen: _Seen, snapshots: list[Snapshot]) -> StudyPage:
    plans, first = [member.plan for member in seen.members], snapshots[0]
    state, reason = state_of(snapshots)
    data_sets, totals = data_set_lines(snapshots), total_line(snapshots)
    started = min((s.started for s in snapshots if s.started is not None), default=None)
    ended = max((s.ended for s in snapshots if s.ended is not None), default=None)
    servers, team = seen.servers, team_of(seen.members, seen.servers, seen.now)
    return StudyPage(
        id=id,
        name=first.name,
        description=seen.files.description,
        workspace=first.workspace,
        state=state,
        state_reason=reason,
        executor=team.executor,
        owner=team.owner,
        now=seen.now,
        started=started,
        ended=ended,
        elapsed_s=sum(snapshot.elapsed_s for snapshot in snapshots),
        totals=totals,
        steps=step_lines(plans, snapshots, data_sets),
        edges=step_edges(plans[0]),
        eta=sum_of([s.eta for s in snapshots]) if state == "running" else None,
        rate=totals.rate,
        workers=team.workers,
        num_slots=team.num_slots,
        jobs=seen.around.jobs() if servers is not None else (),
        step_jobs=tuple(jobs for member in seen.members for jobs in seen.step_jobs(member)),
        queues=() if servers is None else servers.queues,
        obstacles=seen.around.obstacles() if _may_be_held_up(state, servers) else (),
        notes=_notes(servers) if state != "unknown" else (),  # its reason says the same
        data_sets=data_sets,
        runs=seen.files.runs,
        num_failures=totals.failed,
        samples=samples_line(plans),
        extensions=tuple(member.name for member in seen.members[1:]),
        ledger_bytes=sum(snapshot.ledger_bytes for snapshot in snapshots),
        damage=tuple(place for snapshot in snapshots for place in snapshot.damage),
    )


def _may_be_held_up(state: StudyState, servers: ServerFacts | None) -> bool:
    """True if it is worth to ask what keeps more of the study from running."""
    return state in ("stalled", "unknown", "stopped") or (state == "running" and servers is not None)


def _notes(servers: ServerFacts | None) -> tuple[str, ...]:
    if servers is None or servers.error is None:
        return ()
    return (f"the servers cannot be asked: {servers.error}",)


def _unreadable(path: Path, id: str, problem: str, now: float) -> StudyPage:
    return StudyPage(
        id=id,
        name=study_name_of(path),
        workspace=str(path),
        state="unreadable",
        state_reason=problem,
        now=now,
    )


def _with_key(path: Path, key: str, known: Mapping[str, str], what: str) -> Path:
    try:
        return Path(known[key])
    except KeyError:
        raise WorkspaceError(f"{path} has no {what} called {key!r}") from None
