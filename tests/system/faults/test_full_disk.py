"""A disk without room, as the writers of bundles and shards meet it: an OSError, and a process that lives on."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import full_disk
import h5py
import numpy as np
import pytest

from merlin.shards.format.hdf5_file import NewFile


@pytest.fixture(scope="module")
def attempts_of(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What one process for all kinds of files saw."""
    command = [sys.executable, full_disk.__file__, str(tmp_path_factory.mktemp("full"))]
    known = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # where the modules that tests share are
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=known)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Any]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", full_disk.CASES)
def test_a_file_that_cannot_be_written_costs_no_process(attempts_of: dict[str, list[Any]], kind: str) -> None:
    attempts = attempts_of[kind]
    assert len(attempts) > 10
    assert [found for found in attempts if found[1:] != [0, errno.EFBIG, []]] == []


def test_what_a_signal_raises_in_the_middle_of_a_write_comes_when_the_file_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    new = NewFile(tmp_path / "a.h5")
    new.check()
    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", interrupted)
        new.file["x"] = np.arange(10.0)
        new.file.flush()
    with pytest.raises(KeyboardInterrupt):
        new.check()
    with pytest.raises(KeyboardInterrupt):
        new.close()


def test_a_file_is_whole_whoever_still_holds_a_part_of_it(tmp_path: Path) -> None:
    with NewFile(tmp_path / "a.h5") as new:
        held = new.file.create_dataset("x", data=np.arange(10.0), chunks=(4,))
        new.check()
    assert not held
    with NewFile(tmp_path / "a.h5", "r+") as new:
        new.file["y"] = new.file["x"][2:5]
    with h5py.File(tmp_path / "a.h5", "r") as file:
        assert file["y"][()].tolist() == [2.0, 3.0, 4.0]


def test_what_goes_wrong_in_the_block_is_raised_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), NewFile(tmp_path / "a.h5"):
        1 / 0  # noqa: B018
