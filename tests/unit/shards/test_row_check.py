"""Check values of rows: any change shows, and only in the row that changed."""

from __future__ import annotations

import numpy as np
import pytest

from merlin.errors import ShardError
from merlin.shards.format.row_check import FIELDS, GIVEN, RowChecks, decode, encode


def checks(columns, rows=None, step=None, offsets=None):
    """Check values of dense columns {name: values}, added `step` rows at a time."""
    first = next(iter(columns.values()))
    rows = np.arange(len(first)) if rows is None else rows
    made = RowChecks(rows)
    for name, values in columns.items():
        size = step or max(1, len(values))
        for lo in range(0, len(values), size):
            if offsets is not None:
                made.add_items(name, lo, values[lo : lo + size], offsets)
            else:
                made.add(name, lo, values[lo : lo + size])
    return made.values


def changed_rows(a, b, group=FIELDS):
    return np.flatnonzero(a[:, group] != b[:, group]).tolist()


SHAPES = [
    ("f8", ()),
    ("i4", ()),
    ("f4", (3,)),
    ("u1", (7, 5, 3)),
    ("f8", (15,)),
    ("f4", (100, 200)),
    ("?", (9,)),
]


@pytest.mark.parametrize(("dtype", "shape"), SHAPES)
def test_a_changed_byte_shows_in_its_row_alone(dtype, shape):
    random = np.random.default_rng(1)
    values = random.integers(0, 2, size=(11, *shape)).astype(dtype)
    before = checks({"fields/a": values})
    for _ in range(20):
        changed = values.copy()
        raw = changed.reshape(11, -1).view(np.uint8)
        row, byte = int(random.integers(11)), int(random.integers(raw.shape[1]))
        raw[row, byte] ^= np.uint8(1 << int(random.integers(8)))
        assert changed_rows(before, checks({"fields/a": changed})) == [row]


def test_two_flipped_signs_show():
    """In a plain product modulo 2^64 the top bits of two words cancel."""
    values = np.ones((4, 10))
    before = checks({"fields/a": values})
    values[2, 3] *= -1
    values[2, 7] *= -1
    assert changed_rows(before, checks({"fields/a": values})) == [2]


@pytest.mark.parametrize("change", ["swap", "zero a page", "shift"])
def test_structured_damage_shows(change):
    values = np.tile(np.float32(1.0), (3, 4096))
    values[1, :2] = 5, 6
    before = checks({"fields/a": values})
    if change == "swap":
        values[1, [0, 1]] = values[1, [1, 0]]
    elif change == "zero a page":
        values[1, 1024:2048] = 0
    else:
        values[1] = np.roll(values[1], 8)
    assert changed_rows(before, checks({"fields/a": values})) == [1]


@pytest.mark.parametrize("step", [1, 2, 5])
def test_how_the_rows_were_cut_does_not_matter(step):
    values = np.random.default_rng(2).normal(size=(11, 6))
    text = np.array([f"täxt {i}" for i in range(11)], dtype=object)
    columns = {"fields/a": values, "fields/t": text}
    assert np.array_equal(checks(columns), checks(columns, step=step))


def test_rows_with_the_same_values_differ_by_their_number():
    made = checks({"fields/a": np.zeros((5, 3))})
    assert len(set(made[:, FIELDS].tolist())) == 5


def test_values_moved_to_another_column_show():
    values = np.arange(1.0, 7.0)
    a, b = checks({"fields/a": values}), checks({"fields/b": values})
    assert changed_rows(a, b) == list(range(6))


def test_inputs_have_a_check_of_their_own():
    a = checks({"fields/a": np.arange(4.0), "inputs/x": np.arange(4.0)})
    b = checks({"fields/a": np.arange(4.0), "inputs/x": np.array([0.0, 1.0, 9.0, 3.0])})
    assert changed_rows(a, b) == []
    assert changed_rows(a, b, GIVEN) == [2]


def test_provenance_and_ids_are_in_no_check():
    a = checks({"row": np.arange(4), "provenance/attempt": np.ones(4, np.int32)})
    assert np.array_equal(a, RowChecks(np.arange(4)).values)


@pytest.mark.parametrize("step", [1, 3, 4, 100])
def test_items_of_ragged_rows_count_for_their_row(step):
    offsets = np.array([0, 2, 2, 7, 8, 8])
    items = np.random.default_rng(3).normal(size=(8, 3)).astype("f4")
    before = checks({"fields/g/values": items}, np.arange(5), step, offsets)
    assert np.array_equal(before, checks({"fields/g/values": items}, np.arange(5), None, offsets))
    for item, row in ((0, 0), (1, 0), (2, 2), (6, 2), (7, 3)):
        changed = items.copy()
        changed[item, 1] += 1
        assert changed_rows(before, checks({"fields/g/values": changed}, np.arange(5), step, offsets)) == [
            row
        ]


def test_a_wrong_offset_shows_in_the_rows_beside_it_even_where_items_are_zero():
    items = np.zeros((8, 3))
    before = checks({"fields/g/values": items}, np.arange(4), None, np.array([0, 2, 4, 6, 8]))
    after = checks({"fields/g/values": items}, np.arange(4), None, np.array([0, 2, 5, 6, 8]))
    assert changed_rows(before, after) == [1, 2]


def test_text_form():
    values = checks({"fields/a": np.arange(5.0)})
    assert np.array_equal(decode(encode(values)), values)
    assert decode("").shape == (0, 2)
    for bad in ("x", "AAAA"):
        with pytest.raises(ShardError, match="not a list of check values"):
            decode(bad)


def test_no_rows_and_no_values():
    assert checks({"fields/a": np.zeros((0, 3))}).shape == (0, 2)
    assert len(set(checks({"fields/a": np.zeros((3, 0))})[:, FIELDS].tolist())) == 3
