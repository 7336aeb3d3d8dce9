"""Where the columns of a file lie."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from merlin.shards.format.digest import digest_array
from merlin.shards.writing import columns as module
from merlin.shards.writing.columns import LARGE_PAGE, PAGE, ColumnSpec, FileHead, write_columns


def test_large_columns_begin_at_large_pages_and_others_at_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LARGE_BYTES", 1 << 20)
    rng = np.random.default_rng(0)
    values = {
        "fields/image": rng.random((40, 64, 64)),  # 1.3 MB
        "fields/small": rng.random(1000),
        "fields/other": rng.random((300, 1000)),  # 2.4 MB
        "sample_id": np.arange(40),
    }

    def spec(name: str) -> ColumnSpec:
        content = values[name]

        def fill(lo: int, hi: int, out: np.ndarray) -> None:
            out[...] = content[lo:hi]

        return ColumnSpec(name, content.dtype, content.shape, fill)

    path = tmp_path / "shard.h5"
    written = {
        info.name: info for info in write_columns(path, [spec(name) for name in values], FileHead({"a": 1}))
    }

    with h5py.File(path) as file:
        for name, content in values.items():
            np.testing.assert_array_equal(file[name][()], content)
        places = {name: file[name].id.get_offset() for name in values}
    assert {name: place % LARGE_PAGE == 0 for name, place in places.items()} == {
        "fields/image": True,
        "fields/small": False,
        "fields/other": True,
        "sample_id": False,
    }
    assert places["fields/small"] % PAGE == 0
    first = written["fields/image"].extents[0]
    assert (first.offset, first.digest) == (
        places["fields/image"],
        digest_array(values["fields/image"][: first.hi]),
    )
