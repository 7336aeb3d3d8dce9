"""A run-length map says the same as a list, also when it has many blocks."""

from __future__ import annotations

from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.plan import runs
from merlin.plan.runs import RunMap

SIZE = 60
CHANGES = st.lists(st.tuples(st.integers(0, SIZE), st.integers(0, 20), st.integers(0, 3)), max_size=80)


@pytest.fixture(autouse=True, params=[2, 5, 2048])
def block(request, monkeypatch):
    monkeypatch.setattr(runs, "_BLOCK", request.param)


def runs_of(values, lo, hi):
    """(lo, hi, value) of equal neighbours in values[lo:hi]."""
    found = []
    for value, group in groupby(values[lo:hi]):
        found.append((lo, lo + len(list(group)), value))
        lo = found[-1][1]
    return found


@given(CHANGES, st.integers(0, SIZE), st.integers(0, SIZE))
def test_a_map_holds_what_was_set(changes, lo, hi):
    made, values = RunMap(SIZE, 9), [9] * SIZE
    for first, num, value in changes:
        end = min(SIZE, first + num)
        made.set(first, end, value)
        values[first:end] = [value] * (end - first)
    assert list(made.runs(lo, hi)) == runs_of(values, lo, hi)
    assert [made[i] for i in range(SIZE)] == values
    again = RunMap.from_runs(SIZE, made.runs())
    assert list(again.runs()) == runs_of(values, 0, SIZE)
    assert (
        again.columns()
        == made.columns()
        == tuple([run[k] for run in runs_of(values, 0, SIZE)] for k in (0, 2))
    )
