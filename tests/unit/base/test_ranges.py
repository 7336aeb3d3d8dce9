"""Ranges of integers, against the sets of these integers."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.base.ranges import (
    distinct,
    format_ranges,
    mark,
    merged,
    numbers,
    stretches,
    to_ranges,
    total,
    touching,
    within,
    without,
)

RANGES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda r: (r[0], r[0] + r[1])))
SETS = st.sets(st.integers(-5, 40))


def members(ranges):
    return {number for lo, hi in ranges for number in range(lo, hi)}


def assert_maximal(ranges):
    edges = [edge for each in ranges for edge in each]
    assert edges == sorted(set(edges))  # no range is empty, and none touches the next


@given(RANGES)
def test_merged_ranges_have_gaps_in_between(ranges):
    found = merged(ranges)
    assert members(found) == members(ranges)
    assert_maximal(found)
    assert total(found) == len(members(ranges))


@given(RANGES, RANGES)
def test_ranges_are_cut_at_others(ranges, others):
    for found, expected in (
        (within(ranges, others), members(ranges) & members(others)),
        (without(ranges, others), members(ranges) - members(others)),
    ):
        assert members(found) == expected
        assert_maximal(found)


@given(SETS)
def test_an_array_and_a_sequence_give_the_same_maximal_ranges(wanted):
    ascending = sorted(wanted)
    found = to_ranges(np.array(ascending, np.int64))
    assert members(found) == wanted
    assert_maximal(found)
    assert tuple(stretches(ascending)) == found
    assert all(type(edge) is int for each in found for edge in each)
    assert numbers(found).tolist() == ascending


@given(RANGES)
def test_the_numbers_of_ranges_are_there_once(ranges):
    found = numbers(ranges)
    assert found.dtype == np.int64
    assert found.tolist() == sorted(members(ranges))


@given(RANGES, st.integers(0, 40))
def test_ranges_mark_the_entries_of_a_mask(ranges, first):
    mask = np.zeros(20, dtype=bool)
    mark(mask, ranges, first)
    assert set((first + np.flatnonzero(mask)).tolist()) == members(ranges) & set(range(first, first + 20))
    mark(mask, ranges, first, False)
    assert not mask.any()


@given(RANGES, st.integers(-2, 40), st.integers(1, 10))
def test_ranges_that_touch_another_are_found(ranges, lo, num):
    ranges, hi = merged(ranges), lo + num
    assert touching(ranges, lo, hi) == [(a, b) for a, b in ranges if max(a, lo) < min(b, hi)]


@given(st.lists(st.integers(-5, 5)))
def test_distinct_values_are_those_of_numpy(values):
    given = np.array(values, dtype=np.int64)
    assert np.array_equal(distinct(given), np.unique(given)) and distinct(given).dtype == given.dtype
    assert given.tolist() == values


@pytest.mark.parametrize(
    ("ranges", "text"),
    [((), ""), (((3, 4), (7, 10)), "3, 7-9"), (((0, 1), (2, 3), (4, 6)), "0, 2 and 1 more ranges")],
)
def test_ranges_are_written_with_inclusive_ends(ranges, text):
    assert format_ranges(ranges, limit=2) == text


def test_ranges_load_no_numpy():
    code = "import sys, merlin.base.ranges; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
