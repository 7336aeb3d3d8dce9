"""Workers that begin as copies of the command."""

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from merlin.execution import pool
from merlin.execution.forked import ForkedProcess, can_fork, start_copy

Start = Callable[[Callable[[int], int]], ForkedProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a copy that runs a function of the descriptor it keeps, and logs into `tmp_path / "log"`."""
    started: list[ForkedProcess] = []
    ours, theirs = socket.socketpair()

    def begin(main: Callable[[int], int]) -> ForkedProcess:
        with (tmp_path / "log").open("ab") as log:
            keep = theirs.fileno()
            started.append(start_copy(lambda: main(keep), log=log.fileno(), keep=keep))
        return started[-1]

    with ours, theirs:
        yield begin
        for process in started:
            process.kill()
            process.wait()


def _wait_for_ever(_: int) -> int:
    signal.pause()
    return 0


def test_a_copy_ends_with_the_code_of_its_main(start: Start) -> None:
    process = start(lambda _: 7)
    assert process.wait(timeout=60) == 7 and process.poll() == 7


def test_an_error_of_the_copy_is_told_in_its_log(start: Start, tmp_path: Path) -> None:
    assert start(lambda _: 1 // 0).wait() == 1
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()


def test_what_is_printed_in_the_copy_is_in_its_log_and_nowhere_else(
    start: Start, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def main(_: int) -> int:
        print("from the copy")
        return 0

    start(main).wait()
    assert (tmp_path / "log").read_text() == "from the copy\n"
    assert capfd.readouterr() == ("", "")


def test_a_copy_leads_a_session_from_the_beginning(start: Start) -> None:
    process = start(_wait_for_ever)
    assert os.getsid(process.pid) == process.pid


def test_a_copy_has_its_own_descriptors_only(start: Start, tmp_path: Path) -> None:
    def main(keep: int) -> int:
        print(sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0] for fd in (0, 1, 2, keep)))
        return len(os.listdir("/proc/self/fd"))  # with that of the listing itself

    with (tmp_path / "held by the command").open("w"):
        assert start(main).wait() == 5
    log = str(tmp_path / "log")
    assert (tmp_path / "log").read_text() == f"{sorted(['/dev/null', log, log, 'socket'])}\n"


def test_signals_that_the_command_handles_end_a_copy(start: Start) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        process = start(_wait_for_ever)
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=60) == -signal.SIGTERM


def test_a_process_with_more_threads_or_with_libraries_that_mind_is_not_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    try:
        assert not can_fork()
    finally:
        end.set()
        thread.join()
    monkeypatch.setitem(sys.modules, "h5py", sys)
    assert not can_fork()


@pytest.mark.parametrize("library", ["blosc2", "pyarrow"])
def test_a_process_with_a_library_that_runs_threads_is_not_copied(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, sys)
    assert not can_fork()


def test_a_process_that_ignores_the_end_of_its_children_is_not_copied() -> None:
    code = """
import signal
from merlin.execution.forked import can_fork
before = can_fork()
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(before, can_fork())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\n"


def _refuse_to_fork() -> int:
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_a_copy_that_cannot_be_made_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", _refuse_to_fork)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="Cannot allocate memory"):
        start_copy(lambda: 0, log=1, keep=2)
    assert os.listdir("/proc/self/fd") == before


def test_where_no_copy_can_be_made_a_worker_is_a_new_python(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(os, "fork", _refuse_to_fork)
    monkeypatch.setattr(pool, "can_fork", lambda: True)
    with (tmp_path / "log").open("wb") as log:
        process = pool._start(["--help"], log.fileno(), log.fileno(), may_fork=True, server=None)
        assert process.wait(timeout=60) == 0
    assert "--workspace" in (tmp_path / "log").read_text()
