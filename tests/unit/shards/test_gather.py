"""Scattered rows of mapped files: the same from the disk as from memory."""

from __future__ import annotations

import os

import numpy as np
import pytest

from merlin.shards.format.aligned import aligned_empty
from merlin.shards.reading.gather import Gather
from merlin.shards.reading.sharing import Workers

ROW = (16, 256)  # of float32: 16 KiB
NUM = 2500  # 39 MiB: more than is asked for at once


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.bin"
    np.arange(NUM * 4096, dtype=np.float32).tofile(path)
    return path


@pytest.fixture
def items(file):
    """Rows that are on the disk only, where the file system lets go of them."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return np.memmap(file, np.float32, "r", shape=(NUM, *ROW))


@pytest.fixture(params=[1, 3])
def gather(request):
    workers = Workers(request.param)
    yield Gather(workers)
    workers.close()


@pytest.mark.parametrize("num", [1, 60, NUM])
@pytest.mark.parametrize("is_cold", [True, False])
def test_rows_arrive_in_the_order_wanted(gather, items, num, is_cold):
    gather.is_cold = is_cold
    wanted = np.random.default_rng(num).permutation(NUM)[:num]
    out = aligned_empty((num, *ROW), items.dtype)
    gather.rows(items, wanted, out)
    np.testing.assert_array_equal(out[:, 0, 0], wanted * 4096.0)
    np.testing.assert_array_equal(out, np.asarray(items)[wanted])


def test_rows_in_memory_are_not_asked_for(gather, items):
    wanted, out = np.arange(NUM), aligned_empty((NUM, *ROW), items.dtype)
    gather.rows(items, wanted, out)
    gather.rows(items, wanted, out)
    assert not gather.is_cold


def test_a_place_that_is_not_aligned_is_filled_too(gather, items):
    wanted = np.arange(NUM)[::-1]
    memory = np.empty(NUM * 16384 + 4, np.uint8)
    out = memory[4:].view(np.float32).reshape(NUM, *ROW)
    gather.rows(items, wanted, out)
    np.testing.assert_array_equal(out, np.asarray(items)[wanted])
