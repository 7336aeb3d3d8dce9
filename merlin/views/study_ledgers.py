"""The ledgers of a study and of its extensions, read on as they grow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.files import stamp
from merlin.errors import LedgerError, WorkspaceError
from merlin.ledger.columns import task_columns
from merlin.ledger.record_index import RecordIndex
from merlin.ledger.replay import LedgerEntry, Replay
from merlin.plan.plan import Plan, StepInstance
from merlin.plan.tasks import Outcome
from merlin.status.tally import Tally
from merlin.status.tally_facts import TallyFacts
from merlin.status.tasks import TaskRow, task_row
from merlin.views.outcome_runs import OutcomeRuns, join_runs, runs_of_map
from merlin.views.throughput import ThroughputBars
from merlin.workspace.directory import (
    EXTENSIONS_DIR,
    Workspace,
    extension_name,
    extension_paths,
    open_workspace,
)

_ENDS = (("ok", Outcome.OK), ("failed", Outcome.FAILED), ("skipped", Outcome.SKIPPED))
MAX_GAP = 2000  # ranges with at most so many unwanted tasks between them are read together


class Member:
    """The study itself, or one of its extensions."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.plan: Plan = workspace.plan
        self.state = Replay(workspace.ledger_dir, self.plan)
        self.tally = Tally(self.state, self.plan)
        self.facts = TallyFacts(self.tally)
        self._runs: dict[str, tuple[int, OutcomeRuns]] = {}
        self._indices: dict[str, RecordIndex] = {}
        self._missing: tuple[object, int] = None, 0  # state of the records -> missing tasks
        self._stamp = stamp(workspace.plan_path)

    @property
    def name(self) -> str:
        return self.workspace.member

    @cached_property
    def steps(self) -> dict[str, list[StepInstance]]:
        """The instances of each step, in the order of the plan."""
        return self.plan.by_step()

    @cached_property
    def by_key(self) -> dict[str, StepInstance]:
        return {self.key(instance): instance for instance in self.plan.instances}

    @property
    def is_replaced(self) -> bool:
        """True if there is another plan now, or none."""
        return stamp(self.workspace.plan_path) != self._stamp

    def update(self) -> list[LedgerEntry]:
        """Read what was appended to the ledger; returns the new records. Raises LedgerError."""
        new = self.tally.update()
        self.facts.update(new)
        return new

    def key(self, instance: StepInstance) -> str:
        """The name of an instance among those of the study and of all its extensions."""
        return f"{self.name}/{instance.id}" if self.name else instance.id

    def runs_of(self, instance: str) -> OutcomeRuns:
        """The outcomes of an instance, as of the last update."""
        num_records = self.tally.sums[instance].num_records
        known = self._runs.get(instance)
        if known is None or known[0] != num_records:
            known = self._runs[instance] = num_records, runs_of_map(self.tally.outcomes_of(instance))
        return known[1]

    def records_over(self, instance: str, ranges: list[tuple[int, int]]) -> list[LedgerEntry]:
        """The records that concern tasks of these sorted ranges."""
        index = self._indices.setdefault(instance, RecordIndex(self.state, instance))
        return index.over(ranges)

    def rows(self, instance: StepInstance, ranges: list[tuple[int, int]]) -> Iterator[TaskRow]:
        """The rows of the tasks in sorted ranges. Each record is read about once, however scattered they are."""
        among = self.records_over(instance.id, ranges)
        for window in _windows(ranges):
            lo, hi = window[0][0], window[-1][1]
            columns = task_columns(self.state, instance.id, instance.num_tasks, lo, hi, among=among)
            for first, end in window:
                for task in range(first, end):
                    row = task_row(self.workspace, instance, columns, task - lo)
                    yield replace(row, instance=self.key(instance))

    @property
    def num_missing(self) -> int:
        """Tasks without an end."""
        records = self.tally.generation, self.state.num_records
        if self._missing[0] != records:
            num = sum(self.counts(instance)["missing"] for instance in self.plan.instances)
            self._missing = records, num
        return self._missing[1]

    def counts(self, instance: StepInstance) -> dict[str, int]:
        """Tasks of an instance by outcome: planned = ok + failed + skipped + missing."""
        found = self.facts.counts()[instance.id]
        ended = {word: found.get(outcome, 0) for word, outcome in _ENDS}
        return {**ended, "missing": instance.num_tasks - sum(ended.values())}


class Stretch(Struct, frozen=True):
    """A step instance in a list of tasks, whose first position there is `first`."""

    member: Member
    instance: StepInstance
    first: int

    @property
    def end(self) -> int:
        return self.first + self.instance.num_tasks


class StudyLedgers:
    """Only one thread uses it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members: list[Member] = []
        self._bars: ThroughputBars | None = None
        self._generations: list[int] = []
        self._joined: dict[str, tuple[object, OutcomeRuns]] = {}

    def forget(self) -> None:
        """Begin anew with the next update."""
        self._members = []

    @property
    def members(self) -> list[Member]:
        """The study, and its extensions, oldest first."""
        return self._members

    def update(self) -> None:
        """Read what is new. Raises WorkspaceError and LedgerError; the next call then begins anew."""
        try:
            try:
                self._update()
            except LedgerError:  # a segment may have been removed in between
                self._members = []
                self._update()
        except BaseException:
            self._members = []
            raise

    def _update(self) -> None:
        if not self._members or any(member.is_replaced for member in self._members):
            self._members = [Member(open_workspace(self._path))]
            self._bars, self._joined = None, {}
        if not self._members[0].plan.extension:
            self._find_extensions()
        new = [member.update() for member in self._members]
        generations = [member.tally.generation for member in self._members]
        if self._bars is None or generations[: len(self._generations)] != self._generations:
            self._bars = ThroughputBars({i.id: i.step for m in self._members for i in m.plan.instances})
            new = [member.state.entries() for member in self._members]
        for entries in new:
            self._bars.add(entries)
        self._generations = generations

    def _find_extensions(self) -> None:
        try:
            paths = extension_paths(self._path)
        except FileNotFoundError:  # the study is being removed
            return
        except OSError as error:
            raise WorkspaceError(f"cannot read {self._path / EXTENSIONS_DIR}: {error.strerror}") from error
        known = {member.name for member in self._members}
        for path in paths:
            if extension_name(int(path.name)) not in known:
                self._members.append(Member(open_workspace(path)))
                self._bars = None

    def runs_of_step(self, step: str) -> OutcomeRuns:
        """The outcomes of all tasks of `stretches(step)`, numbered as there."""
        records = [(member.tally.generation, member.state.num_records) for member in self._members]
        known = self._joined.get(step)
        if known is None or known[0] != records:
            stretches = self.stretches(step)
            runs = join_runs([each.member.runs_of(each.instance.id) for each in stretches])
            known = self._joined[step] = records, runs
        return known[1]

    @property
    def bars(self) -> ThroughputBars:
        assert self._bars is not None, "update comes first"
        return self._bars

    def stretches(self, step: str = "") -> list[Stretch]:
        """The instances of a step ("": of all) one after another. Raises WorkspaceError if there is no such step."""
        found: list[Stretch] = []
        for member in self._members:
            for instance in member.plan.instances if not step else member.steps.get(step, ()):
                found.append(Stretch(member, instance, found[-1].end if found else 0))
        if step and not found:
            steps = ", ".join(dict.fromkeys(name for member in self._members for name in member.steps))
            raise WorkspaceError(f"the study has no step {step!r}; it has: {steps}")
        return found

    def find_instance(self, key: str) -> tuple[Member, StepInstance]:
        """The instance that `Member.key` names so. Raises WorkspaceError if there is none."""
        for member in self._members:
            if (instance := member.by_key.get(key)) is not None:
                return member, instance
        raise WorkspaceError(f"the study has no step instance {key!r}")

    def find_task(self, key: str, task: int) -> tuple[Member, StepInstance]:
        """The instance with this `Member.key`. Raises WorkspaceError if there is none, or no such task."""
        member, instance = self.find_instance(key)
        if not 0 <= task < instance.num_tasks:
            raise WorkspaceError(f"{key} has the tasks 0 to {instance.num_tasks - 1}, and not {task}")
        return member, instance


def _windows(ranges: list[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """The ranges in groups with small gaps, whose tasks are looked at together."""
    group: list[tuple[int, int]] = []
    for lo, hi in ranges:
        if group and lo - group[-1][1] > MAX_GAP:
            yield group
            group = []
        group.append((lo, hi))
    if group:
        yield group
