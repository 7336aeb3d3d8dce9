"""Fewer bits of mantissa: the error is bounded, and nothing but the mantissa changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.shards.writing.rounding import MANTISSA_BITS, round_mantissa

WIDTHS = {"float16": 16, "float32": 32, "float64": 64}


@pytest.mark.parametrize("dtype", MANTISSA_BITS)
@given(data=st.data())
def test_the_error_is_at_most_half_a_unit_of_the_last_bit_kept(dtype, data):
    bits = data.draw(st.integers(1, MANTISSA_BITS[dtype]))
    value = data.draw(
        st.floats(width=WIDTHS[dtype], allow_nan=False, allow_infinity=False, allow_subnormal=False)
    )
    array = np.array([value], dtype=dtype)
    rounded = round_mantissa(array, bits)
    assert np.isfinite(rounded).all()
    if abs(value) < 2.0 * float(np.finfo(dtype).max) / 3:  # what would be infinity is rounded down instead
        assert abs(float(rounded[0]) - value) <= 2.0 ** -(bits + 1) * abs(value)
    assert round_mantissa(rounded, bits)[0] == rounded[0]
    dropped = (1 << (MANTISSA_BITS[dtype] - bits)) - 1
    assert int(rounded.view(f"u{array.itemsize}")[0]) & dropped == 0


@given(values=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=20))
def test_seven_bits_of_float32_are_bfloat16(values):
    array = np.array(values, dtype=np.float32)
    with np.errstate(over="ignore"):
        expected = array.astype(ml_dtypes.bfloat16).astype(np.float32)
    finite = np.isfinite(expected) | ~np.isfinite(array)
    np.testing.assert_array_equal(round_mantissa(array, 7)[finite], expected[finite])


def test_ties_go_to_even():
    halves = np.array([1.0, 1.125, 1.25, 1.375, 1.5], dtype=np.float32)  # with 2 bits: 1, 1.25, 1.5
    assert round_mantissa(halves, 2).tolist() == [1.0, 1.0, 1.25, 1.5, 1.5]


def test_special_values_stay_and_nothing_becomes_infinite():
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(np.float32).max], dtype=np.float32)
    rounded = round_mantissa(special, 4)
    np.testing.assert_array_equal(rounded[:5], special[:5])
    assert np.signbit(rounded[4])
    assert rounded[5] == np.float32(2.0**128 - 2.0**123)


def test_all_bits_change_nothing_and_blocks_do_not_show():
    values = np.random.default_rng(0).normal(size=(1000, 700)).astype(np.float32)
    np.testing.assert_array_equal(round_mantissa(values, 23), values)
    few = round_mantissa(values.T, 5)
    np.testing.assert_array_equal(few, round_mantissa(values, 5).T)
    assert few.flags.c_contiguous
