"""A disk without room, as the writers of bundles and shards meet it: an OSError, and a process that lives on."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from merlin.shards.format.atomic import replacing
from merlin.shards.writing.bundle import Contribution, write_bundle

WRITE = """
import resource, signal, sys
from pathlib import Path
import numpy as np
from merlin.shards.writing.bundle import Contribution, write_bundle
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)  # no file may be larger: a write fails in its middle
columns = {"fields/a": np.ones(200), "fields/t": np.array(["x" * 50] * 200, object)}
try:
    write_bundle(Path(sys.argv[1]) / "b.h5", Contribution(np.arange(200), np.ones(200, bool), columns, {}), {})
except OSError as error:
    print(error.errno)
"""


@pytest.mark.parametrize("room", [0, 100, 5000, 9000])
def test_a_bundle_that_cannot_be_written_costs_no_process(tmp_path: Path, room: int) -> None:
    command = [sys.executable, "-c", WRITE, str(tmp_path), str(room)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, [str(errno.EFBIG)]), done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("in_memory", [0, 1 << 20])
def test_large_and_small_bundles_hold_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    monkeypatch.setattr("merlin.shards.writing.bundle._IN_MEMORY", in_memory)
    keep = np.arange(100) % 3 > 0
    content = Contribution(np.arange(100), keep, {"fields/a": np.arange(100.0)}, {"a > 0": np.array([0])})
    write_bundle(tmp_path / "b.h5", content, {"x": 1})
    with h5py.File(tmp_path / "b.h5", "r") as file:
        np.testing.assert_array_equal(file["row"][()], np.arange(100)[keep])
        np.testing.assert_array_equal(file["fields/a"][()], np.arange(100.0)[keep])
        assert file["fields/a"].id.get_offset() and file.attrs["x"] == 1
        assert file["filtered/0"].attrs["expression"] == "a > 0"
    assert [path.name for path in tmp_path.iterdir()] == ["b.h5"]


def test_what_hdf5_says_of_a_full_disk_is_an_os_error(tmp_path: Path) -> None:
    said = f"Can't decrement id ref count (file write failed, errno = {errno.ENOSPC}, error message = 'x')"
    with pytest.raises(OSError, match="No space left") as caught, replacing(tmp_path / "s.h5"):
        raise RuntimeError(said)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(RuntimeError), replacing(tmp_path / "s.h5"):
        raise RuntimeError("another")
