"""Rows of several sources that alternate in a shard: the same values, in few reads."""

from __future__ import annotations

import numpy as np
import pytest

from merlin.shards.format.digest import BLOCK_BYTES
from merlin.shards.writing.row_sources import Stretches


class Kept:
    """A source of rows in memory that counts how it is read."""

    def __init__(self, values):
        self.values, self.reads = values, []

    def read(self, name, lo, out):
        self.reads.append(len(out))
        out[...] = self.values[lo : lo + len(out)]


def stretches_of(owners, places):
    cuts = np.flatnonzero((np.diff(owners) != 0) | (np.diff(places) != 1)) + 1
    starts = np.concatenate(([0], cuts))
    return Stretches(owners[starts], places[starts], np.append(cuts, len(owners)))


def values_of(num, shape, dtype):
    if dtype == "text":
        return np.array([f"text {i}" for i in range(num)], dtype=object)
    return np.arange(num * int(np.prod(shape)), dtype=dtype).reshape(num, *shape)


@pytest.mark.parametrize(("shape", "dtype"), [((), "<f8"), ((3, 2), "<f4"), ((40_000,), "<u1"), ((), "text")])
def test_a_block_holds_the_rows_of_all_sources(shape, dtype):
    rng = np.random.default_rng(1)
    sources = [Kept(values_of(300, shape, dtype)) for _ in range(3)]
    owners = rng.choice(3, 250)
    places = np.zeros(250, np.int64)
    for number in range(3):  # with gaps: another source has those rows, too
        mine = owners == number
        places[mine] = np.sort(rng.choice(300, mine.sum(), replace=False))
    found = stretches_of(owners, places)
    for lo, hi in ((0, 250), (17, 19), (100, 250), (249, 250), (30, 30)):
        out = np.empty((hi - lo, *shape), sources[0].values.dtype)
        found.read(sources, "fields/a", lo, hi, out)
        wanted = [sources[k].values[at] for k, at in zip(owners[lo:hi], places[lo:hi], strict=True)]
        assert list(map(np.ndarray.tolist, out) if shape else out) == list(
            map(np.ndarray.tolist, wanted) if shape else wanted
        )


def test_scattered_rows_of_a_source_are_read_together_but_not_more_than_a_block():
    num = 600_000
    old, new = Kept(np.arange(num, dtype="<f8")), Kept(-np.arange(num, dtype="<f8"))
    owners = (np.arange(num) % 10 == 0).astype(np.int64)
    found = stretches_of(owners, np.where(owners, np.arange(num) // 10, np.arange(num)))
    out = np.empty(num)
    found.read([old, new], "fields/a", 0, num, out)
    np.testing.assert_array_equal(out, np.where(owners, -(np.arange(num) // 10), np.arange(num)))
    assert len(old.reads) + len(new.reads) < 10
    assert max(old.reads) * 8 <= BLOCK_BYTES + 64


def test_a_stretch_of_many_bytes_is_read_in_its_place():
    one, other = (Kept(np.zeros((8, 1 << 17), np.uint8)) for _ in range(2))
    found = stretches_of(np.array([0, 1, 0, 1]), np.array([0, 0, 1, 1]))
    found.read([one, other], "fields/a", 0, 4, np.empty((4, 1 << 17), np.uint8))
    assert one.reads == other.reads == [1, 1]
