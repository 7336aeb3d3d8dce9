from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_study import SIZE, chunk, expected, failed, outcomes_of, plan_of, records
from merged_segments import merge_segments

from merlin.errors import LedgerError
from merlin.ledger.encode import decode
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter

PLAN = plan_of(sim=SIZE)


def writers(directory, num):
    return [LedgerWriter(directory, f"w{i}", study_id="s1", session="a", sync=False) for i in range(num)]


def decoded(state):
    return [decode(entry.header, payload, entry.writer) for entry, payload in state.payloads(state.entries())]


@given(written=st.lists(st.tuples(records(), st.integers(0, 2)), max_size=10))
@settings(max_examples=60, deadline=None)
def test_a_merged_segment_says_what_the_segments_said(tmp_path_factory, written):
    directory = tmp_path_factory.mktemp("ledger")
    opened = writers(directory, 3)
    for record, who in written:
        opened[who].append(record)
    for writer in opened:
        writer.close()
    before, live = replay(directory, PLAN), replay(directory, PLAN)
    outcomes, details = outcomes_of(before.outcomes["sim"]), sorted(map(repr, decoded(before)))
    merge_segments(directory)
    after = replay(directory, PLAN)
    live.update()
    for state in (after, live):
        assert state.num_records == len(written)
        assert outcomes_of(state.outcomes["sim"]) == outcomes
        assert sorted(map(repr, decoded(state))) == details


def test_a_reader_ignores_replaced_segments_that_are_still_there(tmp_path):
    opened = writers(tmp_path, 2)
    opened[0].append(chunk([0, 0], lo=0), EventRecord(kind="started"))
    opened[1].append(chunk([1], lo=2, failures=(failed(2),)))
    kept = [(w.path, w.path.read_bytes()) for w in opened]
    merge_segments(tmp_path)
    for path, data in kept:  # as if the merging process had been killed before it removed them
        path.write_bytes(data)
    state = replay(tmp_path, PLAN)
    assert state.num_records == 3
    assert len(state.events()) == 1
    assert [f.failure.task for f in state.failures()] == [2]


def test_a_reader_that_has_seen_the_old_segments_counts_nothing_twice(tmp_path):
    opened = writers(tmp_path, 2)
    for i, writer in enumerate(opened):
        writer.append(chunk([0, 0], lo=2 * i), EventRecord(kind="started"))
    state = replay(tmp_path, PLAN)
    kept = [(w.path, w.path.read_bytes()) for w in opened]
    merge_segments(tmp_path)
    for path, data in kept:
        path.write_bytes(data)
    state.update()
    assert state.num_records == 4
    assert len(state.events()) == 2


def test_a_reader_whose_segments_were_merged_meanwhile_is_told_to_read_again(tmp_path):
    for writer in writers(tmp_path, 2):
        writer.append(chunk([0, 1], failures=(failed(1),)))
    state = replay(tmp_path, PLAN)
    merge_segments(tmp_path)
    with pytest.raises(LedgerError, match="read the ledger again"):
        list(state.failures())
    state.update()
    assert len(list(state.failures())) == 1


def test_merged_segments_can_be_merged_again(tmp_path):
    written = []
    for i in range(3):
        with writers(tmp_path, 1)[0] as writer:
            record = chunk([1, 0], lo=i, attempt=i + 1, failures=(failed(i),))
            written.append(record)
            writer.append(record)
        merge_segments(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    state = replay(tmp_path, PLAN)
    assert outcomes_of(state.outcomes["sim"]) == expected(written)
    assert {entry.writer.worker for entry in state.entries()} == {"w0"}
