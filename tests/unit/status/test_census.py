"""A census of headers says the same as a replay of the records."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from effort import repeats
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from status_study import FAILED, INTERRUPTED, OK, SKIPPED, add, chunk, failed, make_workspace

from merlin.ledger import segments
from merlin.ledger.format import RECORD_MAGIC
from merlin.ledger.header_columns import NeedsCare
from merlin.ledger.records import RESET, ChunkRecord, EventRecord, RangeRecord
from merlin.ledger.replay import replay
from merlin.plan.tasks import NO_OUTCOME
from merlin.status.census import CensusFacts
from merlin.status.snapshot import read_facts, take_snapshot
from merlin.status.tally import Tally
from merlin.status.tally_facts import TallyFacts
from merlin.workspace.directory import Workspace

OUTCOMES = (OK, OK, OK, FAILED, SKIPPED, INTERRUPTED, NO_OUTCOME)


def random_record(draw: random.Random, workspace: Workspace) -> ChunkRecord | RangeRecord | EventRecord:
    instance = draw.choice(workspace.plan.instances)
    lo = draw.randrange(instance.num_tasks)
    hi = draw.randint(lo + 1, instance.num_tasks)
    attempt, started = draw.randint(1, 3), 1000 + draw.uniform(0, 300)
    kind = draw.random()
    if kind < 0.1:
        return EventRecord(kind="noted", data={"number": draw.randint(0, 9)}, time=started)
    if kind < 0.25:
        outcome = draw.choice((SKIPPED, FAILED, RESET))
        return RangeRecord(
            instance=instance.id, lo=lo, hi=hi, outcome=outcome, attempt=attempt, started=started
        )
    outcomes = (
        [draw.choice(OUTCOMES)] * (hi - lo) if kind < 0.6 else [draw.choice(OUTCOMES) for _ in range(lo, hi)]
    )
    failures = tuple(
        failed(lo + i, exit_code=draw.choice((3, 101)))
        for i, outcome in enumerate(outcomes)
        if outcome == FAILED
    )
    return chunk(
        instance.id, lo, outcomes, started=started, elapsed_s=draw.choice((0.0, 2.5, 40.0)), attempt=attempt,
        failures=failures,
    )  # fmt: skip


def assert_the_same(workspace: Workspace) -> None:
    found = CensusFacts(workspace.plan, workspace.ledger_dir)
    state = replay(workspace.ledger_dir, workspace.plan)
    tally = Tally(state, workspace.plan)
    wanted = TallyFacts(tally)
    wanted.update(tally.count())
    assert found.counts() == wanted.counts() == state.counts()
    assert found.last_seen() == wanted.last_seen()
    assert found.events() == state.events()
    assert _runs_and_last(found.events()) == wanted.events()
    assert found.size_bytes == wanted.size_bytes
    for instance in workspace.plan.instances:
        assert list(found.outcomes_of(instance.id).runs()) == list(wanted.outcomes_of(instance.id).runs())
        assert found.may_have_soft_failures(instance.id) == state.may_have_soft_failures(instance.id)
        assert found.may_have_soft_failures(instance.id) >= wanted.may_have_soft_failures(instance.id)
        ours, theirs = found.sums[instance.id], wanted.sums[instance.id]
        for name in (
            "num_records",
            "started",
            "ended",
            "num_ran",
            "num_timed",
            "busy_s",
            "squares",
            "longest_s",
        ):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name)), name
        recent, before = found.recent[instance.id], wanted.recent[instance.id]
        assert _seconds(recent) == pytest.approx(_seconds(before))


def _runs_and_last(events: list[EventRecord]) -> list[EventRecord]:
    """How runs began and ended, and the last other event."""
    others = [event for event in events if not event.kind.startswith("run_")]
    return [event for event in events if event.kind.startswith("run_") or event is others[-1]]


def _seconds(recent) -> np.ndarray:
    return np.array(sorted((second.started, second.num, second.busy_s) for second in recent.since(0.0)))


@settings(
    max_examples=repeats(12, 250), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.integers(0, 2**32))
def test_it_says_the_same_as_a_replay(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    draw = random.Random(seed)
    workspace = make_workspace(tmp_path_factory.mktemp("census") / "w")
    for number in range(draw.randint(0, 4)):
        records = [random_record(draw, workspace) for _ in range(draw.randint(0, 12))]
        add(workspace, *records, worker=f"w{number}", session=draw.choice(("", "run1", "run2")))
    assert_the_same(workspace)


def test_records_with_the_mark_of_a_record_in_them_are_read(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w")
    mark = np.frombuffer(RECORD_MAGIC * 5, np.float32)
    times = ChunkRecord(
        instance="post",
        lo=0,
        hi=5,
        started=1000.0,
        elapsed_s=1.0,
        outcomes=np.zeros(5, np.uint8),
        seconds=mark,
    )
    add(workspace, times, times, chunk("post", 5, [OK] * 3))
    (path,) = workspace.ledger_dir.iterdir()
    assert path.read_bytes().count(RECORD_MAGIC) > 3
    assert_the_same(workspace)


def test_windows_of_any_size_lead_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from merlin.ledger import header_columns

    workspace = make_workspace(tmp_path / "w")
    draw = random.Random(1)
    add(workspace, *[random_record(draw, workspace) for _ in range(60)])
    for size in (64, 333, 1000, 5000):
        monkeypatch.setattr(header_columns, "_WINDOW_BYTES", size)
        assert_the_same(workspace)


def test_a_torn_end_is_left_and_damage_is_for_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "_MANY", 1)
    workspace = make_workspace(tmp_path / "w")
    add(workspace, *[chunk("post", lo, [OK]) for lo in range(8)])
    (path,) = workspace.ledger_dir.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert isinstance(read_facts(workspace), CensusFacts)
    assert_the_same(workspace)
    assert take_snapshot(workspace).totals.ok == 7
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(NeedsCare):
        CensusFacts(workspace.plan, workspace.ledger_dir)
    assert isinstance(read_facts(workspace), TallyFacts)
    assert take_snapshot(workspace).damage


def test_only_a_ledger_with_many_records_is_read_so(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w")
    assert not segments.has_many_records(workspace.ledger_dir)
    add(workspace, chunk("post", 0, [OK] * 20))
    assert not segments.has_many_records(workspace.ledger_dir)


def test_a_run_begins_before_it_ends_also_by_the_clock_of_another_machine(tmp_path: Path) -> None:
    """The clock of the machine that ended it is behind that of the machine that began it."""
    workspace = make_workspace(tmp_path / "ws")
    add(workspace, EventRecord(kind="run_finished", time=9.0), session="at5.0-0", worker="w1")
    add(workspace, EventRecord(kind="run_started", time=10.0), session="at5.0-0", worker="controller")
    add(workspace, EventRecord(kind="run_stopped", time=2.0), session="at1.0-0", worker="controller")
    assert_the_same(workspace)
    facts = CensusFacts(workspace.plan, workspace.ledger_dir)
    assert [event.kind for event in facts.events()] == ["run_stopped", "run_started", "run_finished"]
