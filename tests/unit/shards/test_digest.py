"""Digests of blocks: the documented formula, in one piece and in any."""

from __future__ import annotations

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from merlin.shards.format.digest import WIDE_BYTES, BlockDigest, digest_array, row_digests
from merlin.shards.format.row_check import RowChecks


def block_of(rows, row_bytes):
    return np.random.default_rng(rows + row_bytes).integers(0, 256, (rows, row_bytes)).astype(np.uint8)


def test_a_block_of_narrow_rows_is_hashed_as_its_bytes():
    block = block_of(5, WIDE_BYTES - 1)
    assert digest_array(block) == blake3(block.tobytes()).hexdigest()


def test_a_block_of_wide_rows_is_hashed_as_their_digests():
    block = block_of(5, WIDE_BYTES)
    rows = b"".join(blake3(row.tobytes()).digest() for row in block)
    assert digest_array(block) == blake3(rows).hexdigest()
    assert digest_array(block.view("<f8").reshape(5, 8, -1)) == digest_array(block)


@given(
    st.sampled_from([1, 8, WIDE_BYTES - 1, WIDE_BYTES, 3 * WIDE_BYTES + 5]),
    st.integers(0, 6),
    st.lists(st.integers(0, 80_000), max_size=8),
)
def test_pieces_give_the_digest_of_the_whole(row_bytes, num_rows, cuts):
    content = block_of(num_rows, row_bytes).reshape(-1)
    digest = BlockDigest(row_bytes)
    ends = sorted(min(cut, len(content)) for cut in cuts)
    for lo, hi in zip([0, *ends], [*ends, len(content)], strict=True):
        digest.update(content[lo:hi])
    assert digest.hexdigest() == digest_array(content.reshape(num_rows, row_bytes))


@pytest.mark.parametrize("missing", [1, 100, WIDE_BYTES, 2 * WIDE_BYTES])
def test_a_block_that_ends_early_has_another_digest(missing):
    content = block_of(3, WIDE_BYTES).reshape(-1)
    digest = BlockDigest(WIDE_BYTES)
    digest.update(content[:-missing])
    assert digest.hexdigest() != digest_array(content.reshape(3, WIDE_BYTES))


@pytest.mark.parametrize("offsets", [None, np.array([0, 2, 2, 5, 6])])
def test_known_digests_of_rows_are_their_check_values(offsets):
    block = block_of(6, WIDE_BYTES)
    made = []
    for digests in (None, row_digests(block)):
        checks = RowChecks(np.arange(6 if offsets is None else 4))
        checks.offsets = {} if offsets is None else {"fields/a": offsets}
        checks.add("fields/a", 0, block, digests)
        made.append(checks.values)
    assert np.array_equal(*made)
    assert not np.array_equal(made[0], RowChecks(np.arange(len(made[0]))).values)
