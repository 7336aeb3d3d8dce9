"""Values that contradict the recorded statistics are found, whatever the shape of the column."""

from __future__ import annotations

import numpy as np
import pytest

from merlin.shards.evidence.bounds import Bounds


def bounds(values, axis=None, is_finite=True):
    """Those of the values themselves."""
    shape = values.shape[1:]
    others = tuple(i for i in range(values.ndim) if axis is None or i != axis + 1)
    low, high = np.nanmin(values, axis=others), np.nanmax(values, axis=others)
    return Bounds(np.atleast_1d(low).astype(float), np.atleast_1d(high).astype(float), axis, shape, is_finite)


CASES = [((), None), ((7,), None), ((3,), 0), ((5, 4, 3), 2), ((3, 40, 50), 0), ((700,), 0)]


@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("dtype", ["f4", "i4"])
def test_a_value_out_of_its_range_names_its_row(shape, axis, dtype):
    values = np.random.default_rng(0).integers(-50, 50, size=(37, *shape)).astype(dtype)
    promised = bounds(values, axis)
    assert promised.broken(values) is None
    for row in (0, 17, 36):
        changed = values.copy()
        changed[row, ...].flat[-1] = 99
        assert np.flatnonzero(promised.broken(changed)).tolist() == [row]


def test_a_channel_has_its_own_range():
    values = np.zeros((4, 6, 2))
    values[..., 1] = 10 + np.arange(24).reshape(4, 6)
    promised = bounds(values, 1)
    values[2, 3, 0] = 12  # fits the other channel
    assert np.flatnonzero(promised.broken(values)).tolist() == [2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_breaks_only_a_column_that_was_finite(bad):
    values = np.arange(12.0).reshape(6, 2)
    finite, loose = bounds(values), bounds(values, is_finite=False)
    values[4, 1] = bad
    assert np.flatnonzero(finite.broken(values)).tolist() == [4]
    assert loose.broken(values) is None
    values[4, 0] = 1e9
    assert np.flatnonzero(loose.broken(values)).tolist() == [4]


def test_pieces_of_rows_are_held_against_all_channels():
    values = np.arange(24.0).reshape(2, 4, 3)
    promised = bounds(values, 1)
    assert not promised.broken_anywhere(values[1, 2:])
    assert promised.broken_anywhere(np.array([3.0, 24.0]))
    assert promised.broken_anywhere(np.array([3.0, np.nan]))


def test_no_rows_break_nothing():
    assert bounds(np.arange(4.0)).broken(np.zeros(0)) is None
