"""Files that appear whole or not at all, and locks between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from merlin.base.files import remove_leftovers, replace_link, replacing, write_text
from merlin.base.locks import LockTaken, locked
from merlin.base.processes import read_process, start_ticks, works_in


def test_a_file_that_could_not_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_private_file_is_private_before_it_holds_anything(tmp_path: Path) -> None:
    with replacing(tmp_path / "key", mode=0o600) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600
        temporary.write_text("secret")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_what_killed_writers_left_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "a.1234.tmp").write_text("half")
    (tmp_path / "b.1234.tmp").write_text("of another file")
    remove_leftovers(tmp_path, "a")
    assert os.listdir(tmp_path) == ["b.1234.tmp"]


def test_a_link_is_replaced_in_one_step(tmp_path: Path) -> None:
    replace_link(tmp_path / "link", "one")
    replace_link(tmp_path / "link", "two")
    assert os.readlink(tmp_path / "link") == "two"
    assert os.listdir(tmp_path) == ["link"]


HOLD = """
import sys
from pathlib import Path
from merlin.base.locks import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_lock_is_held_by_one_process_and_released_by_its_death(tmp_path: Path, kind: str) -> None:
    path = tmp_path if kind == "directory" else tmp_path / "lock"
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LockTaken) as taken, locked(path):
            pass
        assert kind == "directory" or f"pid {holder.pid} on " in str(taken.value)
        holder.kill()
        holder.wait()
        with locked(path, wait=True):
            pass


def test_a_process_is_known_by_its_start() -> None:
    me = read_process(os.getpid())
    assert me is not None
    assert me.parent == os.getppid()
    assert me.session == os.getsid(0)
    assert start_ticks(os.getpid()) == me.start_ticks
    assert works_in(os.getpid(), Path.cwd())


def test_a_process_that_has_ended_and_is_not_collected_counts_as_gone() -> None:
    with subprocess.Popen(["true"]) as done:
        os.waitid(os.P_PID, done.pid, os.WEXITED | os.WNOWAIT)
        assert read_process(done.pid) is None
