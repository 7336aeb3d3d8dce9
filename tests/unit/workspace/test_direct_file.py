"""Large files written past the page cache: every byte, whatever the sizes of the parts are."""

import numpy as np
import pytest

from merlin.workspace import direct_file
from merlin.workspace.direct_file import write_past_cache


@pytest.mark.parametrize("num", [0, 1, 4096, 3 * 4096 - 1, 65_536, 65_537, 1_000_003])
def test_every_byte_is_there(tmp_path, monkeypatch, num):
    monkeypatch.setattr(direct_file, "_BLOCK_BYTES", 65_536)
    data = np.random.default_rng(num).integers(0, 256, num, dtype=np.uint8)
    write_past_cache(tmp_path / "a", [data[: num // 3].data, data[num // 3 :].data])
    assert (tmp_path / "a").read_bytes() == data.tobytes()


def test_a_file_that_is_there_is_left_alone(tmp_path):
    (tmp_path / "a").write_text("mine")
    with pytest.raises(FileExistsError):
        write_past_cache(tmp_path / "a", [memoryview(b"other")])
    assert (tmp_path / "a").read_text() == "mine"
