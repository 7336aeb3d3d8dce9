from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_study import SIZE, chunk, expected, failed, outcomes_of, plan_of, records

from merlin.errors import LedgerError
from merlin.ledger.compact import compact
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter

PLAN = plan_of(sim=SIZE)


def writers(directory, num):
    return [LedgerWriter(directory, f"w{i}", study_id="s1", session="a", sync=False) for i in range(num)]


@given(written=st.lists(st.tuples(records(), st.integers(0, 2)), max_size=10))
@settings(max_examples=60, deadline=None)
def test_compaction_changes_nothing_that_a_reader_can_see(tmp_path_factory, written):
    directory = tmp_path_factory.mktemp("ledger")
    opened = writers(directory, 3)
    for record, who in written:
        opened[who].append(record)
    for writer in opened:
        writer.close()
    before, live = replay(directory, PLAN), replay(directory, PLAN)
    outcomes, details = outcomes_of(before.outcomes["sim"]), sorted(map(repr, before.records()))
    done = compact(directory)
    after = replay(directory, PLAN)
    live.update()
    assert [p.name for p in directory.iterdir()] == [done.path.name]
    assert done.num_records == len(written)
    for state in (after, live):
        assert state.num_records == len(written)
        assert outcomes_of(state.outcomes["sim"]) == outcomes
        assert sorted(map(repr, state.records())) == details


def test_a_reader_ignores_segments_that_a_compaction_has_not_removed_yet(tmp_path):
    opened = writers(tmp_path, 2)
    opened[0].append(chunk([0, 0], lo=0), EventRecord(kind="started"))
    opened[1].append(chunk([1], lo=2, failures=(failed(2),)))
    kept = [(w.path, w.path.read_bytes()) for w in opened]
    compact(tmp_path)
    for path, data in kept:  # as if the compaction had been killed before it removed them
        path.write_bytes(data)
    state = replay(tmp_path, PLAN)
    assert state.num_records == 3
    assert len(state.events()) == 1
    assert [f.failure.task for f in state.failures()] == [2]
    compact(tmp_path)
    assert not any(path.exists() for path, _ in kept)
    assert replay(tmp_path, PLAN).num_records == 3


def test_a_reader_that_has_seen_the_old_segments_counts_nothing_twice(tmp_path):
    opened = writers(tmp_path, 2)
    for i, writer in enumerate(opened):
        writer.append(chunk([0, 0], lo=2 * i), EventRecord(kind="started"))
    state = replay(tmp_path, PLAN)
    kept = [(w.path, w.path.read_bytes()) for w in opened]
    compact(tmp_path)
    for path, data in kept:
        path.write_bytes(data)
    state.update()
    assert state.num_records == 4
    assert len(state.events()) == 2


def test_a_reader_that_was_overtaken_by_a_compaction_is_told_to_read_again(tmp_path):
    for writer in writers(tmp_path, 2):
        writer.append(chunk([0, 1], failures=(failed(1),)))
    state = replay(tmp_path, PLAN)
    compact(tmp_path)
    with pytest.raises(LedgerError, match="read the ledger again"):
        list(state.failures())
    state.update()
    assert len(list(state.failures())) == 1


def test_live_writers_are_left_alone(tmp_path):
    opened = writers(tmp_path, 3)
    for i, writer in enumerate(opened):
        writer.append(chunk([0], lo=i))
    done = compact(tmp_path, keep={opened[2].path.name})
    assert done.num_merged == 2
    opened[2].append(chunk([0], lo=5))
    assert outcomes_of(replay(tmp_path, PLAN).outcomes["sim"])[:6] == [0, 0, 0, 255, 255, 0]


def test_a_damaged_segment_is_kept_as_evidence(tmp_path):
    opened = writers(tmp_path, 3)
    for writer in opened:
        for lo in range(3):
            writer.append(chunk([0], lo=lo))
    path = opened[1].path
    data = bytearray(path.read_bytes())
    data[-150] ^= 0xFF
    path.write_bytes(data)
    compact(tmp_path)
    assert path.exists()
    assert [d.path for d in replay(tmp_path, PLAN).damage] == [path]


@pytest.mark.parametrize("rounds", [3])
def test_compactions_can_be_compacted(tmp_path, rounds):
    written = []
    for i in range(rounds):
        with writers(tmp_path, 1)[0] as writer:
            record = chunk([1, 0], lo=i, attempt=i + 1, failures=(failed(i),))
            written.append(record)
            writer.append(record)
        compact(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    state = replay(tmp_path, PLAN)
    assert outcomes_of(state.outcomes["sim"]) == expected(written)
    assert {r.worker for r in state.records()} == {"w0"}
