"""The story of one sample: what has become of it in every step, who did it when, and why not more."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.text import count, duration
from merlin.errors import MerlinError, UsageError, command_line
from merlin.ledger.encode import decode
from merlin.ledger.records import RESET, ChunkRecord, RangeRecord
from merlin.ledger.replay import LedgerEntry, Replay
from merlin.plan.layout import LOGS
from merlin.plan.pieces import pieces_of, shards_over
from merlin.plan.plan import StepInstance, StepKind
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.shards.format.manifest_file import read_manifest, row_outcome
from merlin.views.logs import files_of, outcome_of
from merlin.views.obstacles import obstacles
from merlin.views.server_obstacles import describe_lease
from merlin.views.study_facts import StudyFacts, facts_of
from merlin.views.task_page import sample_values
from merlin.workspace.directory import Workspace, shown_together


class Try(Struct, frozen=True, kw_only=True):
    """One entry of the ledger about a task."""

    outcome: str  # ok, failed, skipped, interrupted; "reset": it was to be run again
    started: float  # epoch seconds
    seconds: float | None  # None: the entry is no try
    attempt: int
    tries: int  # how often it had asked to run again
    worker: str
    host: str
    exit_code: int | None
    cause: str


class TaskStory(Struct, frozen=True, kw_only=True):
    """What has become of a sample in one step instance."""

    step: str
    instance: str
    task: int
    outcome: str  # ok, failed, skipped or missing
    why: str  # why it failed, was skipped, or has not run yet
    remedy: str
    history: tuple[Try, ...]  # in the order in which they count; the last one does
    directory: str  # "" if there is none
    is_normal: bool = False  # it has not ended, and will by itself
    source: str = ""  # of a data set: the step instance whose row of the sample it is about


class SampleStory(Struct, frozen=True, kw_only=True):
    """A sample across the steps of its study."""

    sample_id: int
    workspace: str  # of the study or the extension that it is in
    inputs: Mapping[str, Any]
    tasks: tuple[TaskStory, ...]  # in the order of the plan

    @property
    def exit_code(self) -> int:
        return 0 if all(task.outcome == "ok" or task.is_normal for task in self.tasks) else 1


def story_of(workspace: Workspace, sample: int) -> SampleStory:
    """Tell the story of a sample. Raises UsageError if the study has no such sample."""
    for study in shown_together(workspace):
        task = sample - study.first_sample
        if 0 <= task < study.plan.num_samples:
            facts = facts_of(study)
            return SampleStory(
                sample_id=sample,
                workspace=str(study.path),
                inputs=sample_values(study, task),
                tasks=tuple(_Teller(facts, sample).tasks(task)),
            )
    raise UsageError(
        f"{workspace.path} has no sample {sample}; merlin sql WORKSPACE 'from samples' lists them"
    )


class _Teller:
    """Tells what has become of single tasks."""

    def __init__(self, facts: StudyFacts, sample: int) -> None:
        self._facts, self._study, self._state = facts, facts.workspace, facts.state
        self._sample = sample
        self._goes_on = facts.is_running and all(each.is_normal for each in obstacles(facts))

    def tasks(self, task: int) -> Iterator[TaskStory]:
        """The tasks of the sample, and of the shards that hold its rows."""
        for instance in self._study.plan.instances:
            if instance.per_sample and instance.kind.runs_user_code:
                yield self._task(instance, task)
            elif instance.kind is StepKind.AGGREGATE and instance.aggregate is not None:
                for source in instance.aggregate.sources:
                    found = self._study.instance(source)
                    if found.per_sample:
                        yield self._row(instance, found, task)

    def _row(self, instance: StepInstance, source: StepInstance, task: int) -> TaskStory:
        """The shard that holds a row of the sample, and whether the row is in it."""
        found = self._task(instance, shards_over(instance, source, task, task + 1)[0])
        why = self._why_left_out(instance, source, task) if found.outcome == "ok" else ""
        return replace(found, source=source.id, why=why or found.why)

    def _why_left_out(self, instance: StepInstance, source: StepInstance, task: int) -> str:
        """Why the data set does not have the sample's row of this source; "" if it does, or is not finished."""
        try:
            data = read_manifest(self._study.data_set_dir(instance))
        except (MerlinError, OSError):
            return ""
        for each in data.sources:
            if each.id == source.id and each.workspace == self._study.member:
                outcome, cause = row_outcome(data, each, task)
                if outcome != "ok":
                    return f"sample {self._sample} is left out: {outcome}{cause and f', {cause}'}"
        return ""

    def _task(self, instance: StepInstance, task: int) -> TaskStory:
        history = tuple(history_of(self._state, instance.id, task))
        outcome = outcome_of(self._state, instance.id, task)
        why, remedy = self._why(instance, task, outcome, history)
        places = (self._study.task_dir(instance, task), self._study.instance_dir(instance) / LOGS)
        return TaskStory(
            step=instance.step,
            instance=self._study.below_root(instance.id),
            task=task,
            outcome=outcome,
            why=why,
            remedy=remedy,
            history=history,
            directory=next((str(place) for place in places if place.is_dir()), ""),
            is_normal=outcome == "missing" and self._goes_on,
        )

    def _why(
        self, instance: StepInstance, task: int, outcome: str, history: Sequence[Try]
    ) -> tuple[str, str]:
        path = self._study.path
        if outcome == "failed":
            cause = history[-1].cause if history else ""
            which = ("--samples", self._sample) if instance.per_sample else ("--failed",)
            return cause or "it failed", command_line("rerun", path, *which, "--step", instance.step)
        if outcome == "skipped":
            return self._why_skipped(instance, task, history)
        if outcome == "missing":
            return self._why_missing(instance, task)
        return "", ""

    def _why_skipped(self, instance: StepInstance, task: int, history: Sequence[Try]) -> tuple[str, str]:
        """Which task before it did not end ok."""
        for edge in instance.edges:
            source = self._study.instance(edge.source)
            ended = outcome_of(self._state, source.id, task) if edge.kind == "same" else ""
            if ended in ("failed", "skipped"):
                last = next(reversed(list(history_of(self._state, source.id, task))), None)
                because = f": {last.cause}" if ended == "failed" and last and last.cause else ""
                again = command_line(
                    "rerun", self._study.path, "--samples", self._sample, "--step", source.step
                )
                how = "was skipped" if ended == "skipped" else "failed"
                return f"its task of {source.id} {how}{because}", again if ended == "failed" else ""
        cause = history[-1].cause if history else ""
        return cause or "nothing that it depends on ended ok", command_line("failures", self._study.path)

    def _why_missing(self, instance: StepInstance, task: int) -> tuple[str, str]:
        """What the task waits for, and the command that may help."""
        waits = list(self._waits_for(instance, task))
        if waits:
            return f"it waits for {', and '.join(waits)}", ""
        explain = command_line("explain", self._study.path, instance.step)
        for each in self._facts.waiting:
            if each.instance == instance.id and any(lo <= task < hi for lo, hi in each.tasks):
                left = duration(max(0.0, each.until - self._facts.now))
                return f"it asked to run again (exit code 100 or 104), and may in {left}", explain
        if self._facts.servers is not None:
            for held in self._facts.handed:
                pieces = pieces_of(held.chunk) if held.chunk.instance == instance.id else []
                if any(lo <= task < hi for lo, hi in pieces):
                    if held.worker:
                        return describe_lease(held, self._facts.servers, self._facts.now), ""
                    waited = duration(self._facts.now - held.since)
                    return f"it was offered to the workers of queue {instance.queue} {waited} ago", explain
        if self._facts.holder is not None:
            return self._why_not_ended(instance, task), ""
        if self._facts.is_running:
            return f"it is ready, and waits for its turn on queue {instance.queue}", explain
        return "it is ready, and nobody runs the study", command_line("restart", self._study.path)

    def _why_not_ended(self, instance: StepInstance, task: int) -> str:
        """How far a task of a run on one machine is, by its output: such a run does not report it."""
        written = []
        for file in files_of(self._study, instance, task, ""):
            with suppress(OSError):
                written.append(file.path.stat().st_mtime)
        if not written:
            return "it is ready, and waits for its turn"
        return f"it has begun; it wrote its output {duration(max(0.0, time.time() - max(written)))} ago"

    def _waits_for(self, instance: StepInstance, task: int) -> Iterator[str]:
        for edge in instance.edges:
            source = self._study.instance(edge.source)
            if edge.kind == "same":
                if outcome_of(self._state, source.id, task) == "missing":
                    yield f"its task of {source.id}"
            elif left := self._facts.counts[source.id].missing:
                what = "rows of its shard" if edge.kind == "block" else "all of them"
                yield f"{source.id} ({what}; {count(left, 'task')} of it are open)"


def history_of(state: Replay, instance: str, task: int) -> Iterator[Try]:
    """All entries of the ledger about a task, in the order in which they count."""
    entries = [e for e in state.entries(instance) if e.header.lo <= task < e.header.hi]
    for entry, payload in state.payloads(sorted(entries, key=state.order)):
        record = decode(entry.header, payload, entry.writer)
        if isinstance(record, RangeRecord):
            yield _decided(record, entry)
        elif isinstance(record, ChunkRecord) and record.outcomes[task - record.lo] != NO_OUTCOME:
            yield _ran(record, task)


def _decided(record: RangeRecord, entry: LedgerEntry) -> Try:
    """A try for an outcome that was decided for a range of tasks, and that no worker has reported."""
    name = "reset" if record.outcome == RESET else Outcome(record.outcome).name.lower()
    return Try(
        outcome=name,
        started=entry.header.started,
        seconds=None,
        attempt=record.attempt,
        tries=0,
        worker=record.worker,
        host=record.host,
        exit_code=None,
        cause=record.cause,
    )


def _ran(record: ChunkRecord, task: int) -> Try:
    i = task - record.lo
    offset = 0.0 if record.started_offsets is None else float(record.started_offsets[i])
    outcome = Outcome(int(record.outcomes[i]))
    failure = next((each for each in record.failures if each.task == task), None)
    return Try(
        outcome=outcome.name.lower(),
        started=record.started + offset,
        seconds=float(record.seconds[i]),
        attempt=record.attempt,
        tries=0 if record.tries is None else int(record.tries[i]),
        worker=record.worker,
        host=record.host,
        exit_code=0 if record.exit_codes is None else int(record.exit_codes[i]),
        cause=failure.cause if failure and outcome is Outcome.FAILED else "",
    )
