from __future__ import annotations

import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_study import SIZE, plan_of, records
from merged_segments import merge_segments

from merlin.base.ranges import merged
from merlin.ledger.record_index import RecordIndex
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter


@given(
    written=st.lists(records(), max_size=10),
    tasks=st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 4)), max_size=5),
    data=st.data(),
)
@settings(max_examples=repeats(25, 600))
def test_the_records_of_a_few_tasks_are_found_among_all_while_the_ledger_grows_and_is_merged(
    tmp_path_factory: pytest.TempPathFactory, written: list, tasks: list, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("ledger")
    plan = plan_of(sim=SIZE)
    state = replay(directory, plan)
    index = RecordIndex(state, "sim")
    ranges = [(lo, min(hi, SIZE)) for lo, hi in merged((lo, lo + num) for lo, num in tasks)]
    for record in written:
        with LedgerWriter(directory, "w", study_id="s1", session="a", sync=False) as writer:
            writer.append(record)
        if data.draw(st.booleans()):
            merge_segments(directory)
        state.update()
        expected = [
            entry
            for entry in state.entries("sim")
            if any(entry.header.lo < hi and entry.header.hi > lo for lo, hi in ranges)
        ]
        assert index.over(ranges) == expected
