from __future__ import annotations

import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_study import SIZE, chunk, expected, failed, outcomes_of, plan_of, records
from msgspec.structs import force_setattr, replace

from merlin.errors import LedgerError
from merlin.ledger.format import FRAME_BYTES
from merlin.ledger.records import RESET, EventRecord, RangeRecord
from merlin.ledger.replay import replay
from merlin.ledger.segments import segments
from merlin.ledger.session import make_session
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import NO_OUTCOME, Outcome

OK, FAILED, SKIPPED, INTERRUPTED, SOFT_FAILED = (int(o) for o in Outcome)


def write(directory, *written, worker="w1", **options):
    with LedgerWriter(directory, worker, study_id="s1", sync=False, **options) as writer:
        for record in written:
            writer.append(record)
    return writer.path


def test_a_study_without_a_ledger_has_no_outcomes(tmp_path):
    state = replay(tmp_path / "absent", plan_of(sim=5))
    assert state.counts() == {"sim": {NO_OUTCOME: 5}}
    assert outcomes_of(state.outcomes["sim"]) == [NO_OUTCOME] * 5


def test_what_is_written_is_read_back_exactly(tmp_path):
    record = chunk(
        [OK, FAILED, NO_OUTCOME, OK, FAILED], lo=3,
        started_offsets=np.array([0, 1, 1, 2, 3], np.float32), tries=np.array([0, 2, 0, 0, 0], np.uint8),
        failures=(failed(4, tail="a\nValueError: bad 17\n"), failed(7, "killed by signal 9", -9)),
    )  # fmt: skip
    write(tmp_path, record, worker="w7", host="node1")
    (back,) = replay(tmp_path, plan_of(sim=10)).records()
    assert (back.instance, back.lo, back.hi, back.attempt) == ("sim", 3, 8, 1)
    assert (back.worker, back.host, back.started, back.elapsed_s) == ("w7", "node1", 100.0, 1.0)
    assert back.outcomes.tolist() == record.outcomes.tolist()
    assert back.seconds.tolist() == record.seconds.tolist()
    assert back.started_offsets.tolist() == [0, 1, 1, 2, 3]
    assert back.tries.tolist() == [0, 2, 0, 0, 0]
    assert back.exit_codes.tolist() == [0, 3, 0, 0, -9]
    assert [(f.task, f.cause, f.exit_code, f.signature, f.tail) for f in back.failures] == [
        (4, "exit code 3", 3, "ValueError: bad <n>", "a\nValueError: bad 17\n"),
        (7, "killed by signal 9", -9, "", ""),
    ]


@pytest.mark.parametrize("num", [3, 1000, 70_000])
@pytest.mark.parametrize("pattern", ["all", "scattered", "halves"])
def test_a_failure_with_exit_code_101_was_chosen(tmp_path, num, pattern):
    tasks = np.arange(num)
    chosen = {"all": tasks >= 0, "scattered": tasks % 3 == 1, "halves": tasks >= num // 2}[pattern]
    outcomes = np.where(chosen, FAILED, np.where(tasks % 5 == 0, FAILED, OK))
    codes = np.where(chosen, 101, np.where(outcomes == FAILED, tasks % 7 + 1, 0)).astype(np.int16)
    write(tmp_path, chunk(outcomes.tolist(), lo=4, exit_codes=codes))
    state = replay(tmp_path, plan_of(sim=num + 10, other=1))
    want = [NO_OUTCOME] * 4 + np.where(chosen, SOFT_FAILED, outcomes).tolist() + [NO_OUTCOME] * 6
    assert outcomes_of(state.outcomes_of("sim")) == want
    assert (state.may_have_soft_failures("sim"), state.may_have_soft_failures("other")) == (True, False)
    assert state.counts()["sim"][FAILED] == int((outcomes == FAILED).sum())


def test_a_range_of_a_hundred_million_tasks_takes_a_few_bytes(tmp_path):
    path = write(
        tmp_path, RangeRecord(instance="sim", lo=0, hi=10**8, outcome=SKIPPED, cause="upstream failed")
    )
    assert path.stat().st_size < 500
    state = replay(tmp_path, plan_of(sim=10**8 + 1))
    assert state.counts() == {"sim": {SKIPPED: 10**8, NO_OUTCOME: 1}}
    assert len(list(state.outcomes["sim"].runs())) == 2


def test_events_of_a_run_come_back_in_order_of_time(tmp_path):
    write(tmp_path, EventRecord(kind="finished", data={"reason": "done"}, time=20.0), session="a")
    write(tmp_path, EventRecord(kind="started", data={"workers": 2}, time=10.0), worker="w2", session="a")
    events = replay(tmp_path, plan_of(sim=1)).events()
    assert [(e.kind, e.data, e.time) for e in events] == [
        ("started", {"workers": 2}, 10.0),
        ("finished", {"reason": "done"}, 20.0),
    ]


def test_events_of_a_later_run_come_later_whatever_their_clocks_say(tmp_path):
    write(tmp_path, EventRecord(kind="second", data={}, time=10.0), session=make_session(200.0))
    write(tmp_path, EventRecord(kind="first", data={}, time=3600.0), session=make_session(100.0))
    assert [e.kind for e in replay(tmp_path, plan_of(sim=1)).events()] == ["first", "second"]


def test_a_later_attempt_wins_whatever_the_order_of_the_files(tmp_path):
    write(tmp_path, chunk([OK, OK], attempt=2), session="a")
    write(
        tmp_path,
        chunk([FAILED, FAILED], attempt=1, started=200.0, failures=(failed(0), failed(1))),
        session="a",
    )
    state = replay(tmp_path, plan_of(sim=2))
    assert outcomes_of(state.outcomes["sim"]) == [OK, OK]
    assert state.counts() == {"sim": {OK: 2}}
    assert list(state.failures()) == []


def test_records_that_are_equally_late_count_in_the_same_order_whichever_is_read_first(tmp_path):
    """Only the names of their segments differ, which are random."""
    for folder in map(tmp_path.joinpath, "abcdefgh"):
        write(folder, chunk([OK, FAILED]), session="run")
        state = replay(folder, plan_of(sim=2))
        state.outcomes_of("sim")
        write(folder, chunk([FAILED, OK]), session="run")
        state.update()
        at_once = replay(folder, plan_of(sim=2))
        assert outcomes_of(state.outcomes_of("sim")) == outcomes_of(at_once.outcomes_of("sim"))


def test_a_later_run_wins_although_its_attempts_start_again_at_one(tmp_path):
    write(tmp_path, chunk([FAILED], attempt=5, failures=(failed(0),)), session="first")
    write(tmp_path, chunk([OK], attempt=1, started=50.0), session="second")
    assert replay(tmp_path, plan_of(sim=1)).counts() == {"sim": {OK: 1}}


def test_ok_stays_ok_when_a_later_record_says_interrupted_or_skipped(tmp_path):
    write(tmp_path, chunk([OK, FAILED, NO_OUTCOME], failures=(failed(1),)))
    write(tmp_path, RangeRecord(instance="sim", lo=0, hi=3, outcome=INTERRUPTED, attempt=2))
    assert outcomes_of(replay(tmp_path, plan_of(sim=3)).outcomes["sim"]) == [OK, INTERRUPTED, INTERRUPTED]


def test_a_reset_makes_finished_tasks_missing_again(tmp_path):
    write(tmp_path, chunk([OK] * 4))
    write(tmp_path, RangeRecord(instance="sim", lo=1, hi=3, outcome=RESET, attempt=2))
    state = replay(tmp_path, plan_of(sim=4))
    assert outcomes_of(state.outcomes["sim"]) == [OK, NO_OUTCOME, NO_OUTCOME, OK]
    assert state.counts() == {"sim": {OK: 2, NO_OUTCOME: 2}}


def test_only_failures_that_still_count_are_listed(tmp_path):
    failures = tuple(failed(i) for i in range(4))
    write(tmp_path, chunk([FAILED] * 4, failures=failures), session="a")
    write(tmp_path, chunk([OK, FAILED], lo=1, failures=(failed(2, "timeout"),)), session="b")
    found = {f.failure.task: f.failure.cause for f in replay(tmp_path, plan_of(sim=4)).failures()}
    assert found == {0: "exit code 3", 2: "timeout", 3: "exit code 3"}


def test_every_failure_is_counted_by_cause_but_few_tails_are_kept(tmp_path):
    num = 5000
    failures = tuple(
        failed(i, cause=f"cause {i % 2}", tail=f"{'x' * 1000}\nError at step {i}") for i in range(num)
    )
    path = write(tmp_path, chunk([FAILED] * num, failures=failures))
    found = [f.failure for f in replay(tmp_path, plan_of(sim=num)).failures()]
    assert [f.task for f in found] == list(range(num))
    assert sum(f.cause == "cause 1" for f in found) == num // 2
    assert {f.signature for f in found} == {"Error at step <n>"}
    assert 1 <= sum(bool(f.tail) for f in found) <= 10
    assert path.stat().st_size / num < 16


@pytest.mark.parametrize("has_tail", [True, False])
def test_causes_with_a_value_of_their_sample_are_of_one_kind(tmp_path, has_tail):
    diverged = [f"ValueError: diverged at {i / 7:.3f}" for i in range(5000)]
    texts = [*diverged, "exit code 5", "exit code 1", *(f"KeyError: {chr(0x4E00 + i)}" for i in range(300))]
    failures = tuple(
        failed(i, text, 5 if text == "exit code 5" else 1, tail=f"Traceback\n{text}\n" if has_tail else "")
        for i, text in enumerate(texts)
    )
    write(tmp_path, chunk([FAILED] * len(texts), failures=failures))
    found = [f.failure for f in replay(tmp_path, plan_of(sim=len(texts))).failures()]
    assert [f.cause for f in found[:256]] == diverged[:256]
    assert {f.cause for f in found[256:5000]} == {"ValueError: diverged at <n>"}
    assert {f.signature for f in found[:5000]} == {"ValueError: diverged at <n>" if has_tail else ""}
    assert [f.cause for f in found[5000:5002]] == ["exit code 5", "exit code 1"]
    assert {f.cause for f in found[-40:]} == {"other causes"}


def test_the_ledger_of_another_study_is_refused(tmp_path):
    write(tmp_path, chunk([OK]))
    with pytest.raises(LedgerError, match="another study"):
        replay(tmp_path, plan_of(sim=1, study_id="s2"))


def test_records_outside_the_plan_are_refused(tmp_path):
    write(tmp_path, chunk([OK, OK]))
    with pytest.raises(LedgerError, match=r"sim.* has 1 in the plan"):
        replay(tmp_path, plan_of(sim=1))
    with pytest.raises(LedgerError, match="unknown to the plan"):
        replay(tmp_path, plan_of(other=5))


def test_an_unknown_version_is_refused(tmp_path):
    path = write(tmp_path, chunk([OK]))
    data = bytearray(path.read_bytes())
    data[8] = 99
    path.write_bytes(data)
    with pytest.raises(LedgerError, match="version 99"):
        replay(tmp_path, plan_of(sim=1))


def test_arrays_of_the_wrong_length_are_a_bug_of_the_caller(tmp_path):
    record = chunk([OK, OK])
    force_setattr(record, "hi", 5)
    with pytest.raises(ValueError, match="must have 5 elements"):
        write(tmp_path, record)


def test_segments_tell_who_wrote_them(tmp_path):
    path = write(tmp_path, worker="w3", session="abc", host="node9", pid=4711)
    ((found, header),) = segments(tmp_path)
    assert found == path
    (writer,) = header.writers
    assert (writer.worker, writer.session, writer.host, writer.pid) == ("w3", "abc", "node9", 4711)
    assert path.name.startswith("node9-4711-")


def test_ten_thousand_ordinary_samples_take_fewer_than_sixteen_bytes_each(tmp_path):
    rng = np.random.default_rng(1)
    outcomes = (rng.random(10_000) < 0.05).astype(np.uint8)
    failures = tuple(failed(int(i), tail=f"Traceback\nValueError: {i}") for i in np.flatnonzero(outcomes))
    record = chunk(outcomes.tolist(), failures=failures, started_offsets=rng.random(10_000, dtype=np.float32))
    assert write(tmp_path, record).stat().st_size / 10_000 <= 16


@given(written=st.lists(records(), max_size=12), cut=st.integers(0, 10**6), data=st.data())
@settings(max_examples=repeats(60, 1500), deadline=None)
def test_a_ledger_cut_at_any_byte_replays_to_a_prefix_of_its_records(tmp_path_factory, written, cut, data):
    directory = tmp_path_factory.mktemp("ledger")
    ends = []
    with LedgerWriter(directory, "w", study_id="s1", session="a", sync=False) as writer:
        start = writer.size_bytes
        for record in written:
            writer.append(record)
            ends.append(writer.size_bytes)
    size = writer.size_bytes
    cut = cut % (size + 1)
    writer.path.write_bytes(writer.path.read_bytes()[:cut])
    kept = written[: sum(end <= cut for end in ends)]
    state = replay(directory, plan_of(sim=SIZE))
    assert state.num_records == len(kept)
    want = expected(kept)
    assert outcomes_of(state.outcomes["sim"]) == want
    counted = {v: n for v, n in state.counts()["sim"].items() if n}
    seen = [FAILED if v == SOFT_FAILED else v for v in want]
    assert counted == {v: seen.count(v) for v in set(seen)}
    failing = {f.failure.task for f in state.failures()}
    assert failing <= {i for i, v in enumerate(seen) if v == FAILED}
    assert bool(state.damage) == (cut not in [start, *ends])


@given(written=st.lists(records(), max_size=12), groups=st.integers(1, 4))
@settings(max_examples=repeats(40, 1000), deadline=None)
def test_reading_piece_by_piece_equals_reading_at_once(tmp_path_factory, written, groups):
    directory = tmp_path_factory.mktemp("ledger")
    plan = plan_of(sim=SIZE)
    state = replay(directory, plan)
    with LedgerWriter(directory, "w", study_id="s1", session="a", sync=False) as writer:
        for i, record in enumerate(written):
            writer.append(record)
            if i % groups == 0:
                assert state.update() >= 1
                assert outcomes_of(state.outcomes["sim"]) == expected(written[: i + 1])
    state.update()
    assert outcomes_of(state.outcomes["sim"]) == expected(written)
    assert outcomes_of(replay(directory, plan).outcomes["sim"]) == expected(written)


@given(written=st.lists(records(), max_size=10), data=st.data())
@settings(max_examples=repeats(60, 1500), deadline=None)
def test_records_that_are_read_late_count_as_if_they_had_been_read_in_order(tmp_path_factory, written, data):
    directory = tmp_path_factory.mktemp("ledger")
    plan = plan_of(sim=SIZE)
    state = replay(directory, plan)
    begun = data.draw(st.permutations(range(len(written))))
    with (
        LedgerWriter(directory, "w1", study_id="s1", session="a", sync=False) as one,
        LedgerWriter(directory, "w2", study_id="s1", session="a", sync=False) as two,
    ):
        for record, started in zip(written, begun, strict=True):
            data.draw(st.sampled_from([one, two])).append(replace(record, started=100.0 + started))
            state.update()
            at_once = replay(directory, plan)
            assert outcomes_of(state.outcomes["sim"]) == outcomes_of(at_once.outcomes["sim"])
            assert state.counts() == at_once.counts()


@given(
    written=st.lists(records(), min_size=3, max_size=8), victim=st.integers(0, 7), where=st.integers(0, 10**6)
)
@settings(max_examples=repeats(40, 1000), deadline=None)
def test_a_flipped_byte_costs_its_record_and_no_other(tmp_path_factory, written, victim, where):
    directory = tmp_path_factory.mktemp("ledger")
    ends = []
    with LedgerWriter(directory, "w", study_id="s1", session="a", sync=False) as writer:
        ends.append(writer.size_bytes)
        for record in written:
            writer.append(record)
            ends.append(writer.size_bytes)
    victim %= len(written)
    lo, hi = ends[victim], ends[victim + 1]
    data = bytearray(writer.path.read_bytes())
    data[lo + where % (hi - lo)] ^= 0x55
    writer.path.write_bytes(data)
    state = replay(directory, plan_of(sim=SIZE))
    assert outcomes_of(state.outcomes["sim"]) == expected(written[:victim] + written[victim + 1 :])
    (damage,) = state.damage
    assert (damage.path, damage.offset, damage.size) == (writer.path, lo, hi - lo)
    assert damage.torn == (victim == len(written) - 1)
    assert str(lo) in str(damage)
    assert hi - lo > FRAME_BYTES
