"""Files that appear whole or not at all, and locks between processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from merlin.base.files import (
    absolute_path,
    create_text,
    end_of,
    file_error,
    link_or_copy,
    making_directory,
    name_directory,
    remove_leftovers,
    replace_link,
    replacing,
    write_text,
    written_name,
)
from merlin.base.locks import LockTaken, locked
from merlin.base.processes import read_process, start_ticks, works_in
from merlin.errors import UsageError


def test_a_file_that_could_not_be_finished_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_text(path, "old")
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_the_end_of_a_file_is_shown_and_nothing_waits_for_a_pipe(tmp_path: Path) -> None:
    log, pipe = tmp_path / "log", tmp_path / "pipe"
    log.write_text("first\nlast\n")
    os.mkfifo(pipe)
    assert [end_of(log, num, start=start) for num, start in ((5, 0), (99, 6), (99, 50))] == [
        "last\n",
        "last\n",
        "first\nlast\n",  # it was replaced by a shorter one
    ]
    assert end_of(pipe, 9) == end_of(tmp_path, 9) == end_of(tmp_path / "none", 9) == ""


def test_a_private_file_is_private_before_it_holds_anything(tmp_path: Path) -> None:
    with replacing(tmp_path / "key", mode=0o600) as temporary:
        assert temporary.stat().st_mode & 0o777 == 0o600
        temporary.write_text("secret")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_what_killed_writers_left_can_be_removed(tmp_path: Path) -> None:
    (tmp_path / "a.1234.tmp").write_text("half")
    (tmp_path / "b.1234.tmp").write_text("of another file")
    (tmp_path / "a.5678.tmp").mkdir()
    (tmp_path / "a.5678.tmp/part").write_text("half a directory")
    remove_leftovers(tmp_path, "a", older_than_s=60.0)
    assert len(os.listdir(tmp_path)) == 3
    os.utime(tmp_path / "a.5678.tmp", (0, 0))
    remove_leftovers(tmp_path, "a", older_than_s=60.0)
    assert sorted(os.listdir(tmp_path)) == ["a.1234.tmp", "b.1234.tmp"]
    remove_leftovers(tmp_path, "a")
    assert os.listdir(tmp_path) == ["b.1234.tmp"]


def test_a_link_is_replaced_in_one_step(tmp_path: Path) -> None:
    replace_link(tmp_path / "link", "one")
    replace_link(tmp_path / "link", "two")
    assert os.readlink(tmp_path / "link") == "two"
    assert os.listdir(tmp_path) == ["link"]


def test_a_link_that_cannot_be_replaced_leaves_no_other_name(tmp_path: Path) -> None:
    (tmp_path / "link").mkdir()
    with pytest.raises(OSError):
        replace_link(tmp_path / "link", "one")
    assert os.listdir(tmp_path) == ["link"]


def test_a_copy_that_cannot_be_written_says_why_and_not_why_there_is_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    write_text(tmp_path / "a", "x")
    monkeypatch.setattr("os.link", refuse)
    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(OSError, match="No space left") as raised:
        link_or_copy(tmp_path / "a", tmp_path / "b")
    assert raised.value.__context__ is None
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_has_a_name_already_may_get_it_again(tmp_path: Path) -> None:
    write_text(tmp_path / "a", "x")
    for _ in range(2):
        link_or_copy(tmp_path / "a", tmp_path / "b")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]
    assert (tmp_path / "a").samefile(tmp_path / "b")


# ------------------------------------------------------------------ files that are made once


def refuse_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)


@pytest.mark.parametrize("with_links", [True, False])
def test_of_many_who_create_a_file_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_links: bool
) -> None:
    if not with_links:
        refuse_links(monkeypatch)

    def create(number: int) -> bool:
        try:
            create_text(tmp_path / "a", f"{number}\n", mode=0o600)
        except FileExistsError:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        made = [number for number, done in enumerate(pool.map(create, range(64))) if done]
    assert (tmp_path / "a").read_text() == f"{made[0]}\n" and len(made) == 1
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("with_links", [True, False])
def test_a_new_file_that_the_disk_has_no_room_for_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_links: bool
) -> None:
    if not with_links:
        refuse_links(monkeypatch)
    fill_the_disk(monkeypatch)
    with pytest.raises(OSError) as raised:
        create_text(tmp_path / "a", "x")
    assert file_error(raised.value) == f"{tmp_path / 'a'}: No space left on device; make room"
    assert os.listdir(tmp_path) == []


# ------------------------------------------------------------------ directories


def fill_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)


def fill(directory: Path) -> None:
    (directory / "below" / "empty").mkdir(parents=True)
    (directory / "below" / "a").write_text("a")
    (directory / "b").write_text("b")
    (directory / "link").symlink_to("nowhere")


def test_a_directory_has_its_name_once_all_in_it_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: set[int] = set()
    flush = os.fsync

    def note(descriptor: int) -> None:
        assert not (tmp_path / "made").exists() or os.fstat(descriptor).st_ino == tmp_path.stat().st_ino
        flushed.add(os.fstat(descriptor).st_ino)
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    with making_directory(tmp_path / "made") as temporary:
        fill(temporary)
        assert not (tmp_path / "made").exists()
    assert os.listdir(tmp_path) == ["made"] and (tmp_path / "made/below/a").read_text() == "a"
    paths = [tmp_path, tmp_path / "made", *(tmp_path / "made").rglob("*")]
    assert flushed == {path.stat().st_ino for path in paths if not path.is_symlink()}


def test_a_directory_that_could_not_be_filled_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), making_directory(tmp_path / "made") as temporary:
        fill(temporary)
        raise RuntimeError
    assert os.listdir(tmp_path) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from merlin.base import files
def killed(*_):
    os.kill(os.getpid(), signal.SIGKILL)
at, path = sys.argv[1], Path(sys.argv[2])
if at == "the rename":
    Path.rename = killed
with files.making_directory(path) as temporary:
    (temporary / "a").write_text("a")
    if at == "the writing":
        killed()
    (temporary / "b").write_text("b")
"""


@pytest.mark.parametrize("at", ["the writing", "the rename"])
def test_a_process_that_is_killed_gives_no_directory_its_name(tmp_path: Path, at: str) -> None:
    path = tmp_path / "made"
    assert subprocess.run([sys.executable, "-c", KILLED, at, path], check=False).returncode == -9
    (left,) = tmp_path.iterdir()
    assert left != path and written_name(str(left)) == str(path)
    with making_directory(path) as temporary:
        fill(temporary)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["made", left.name]


@pytest.mark.parametrize("by", ["file", "directory", "link"])
def test_a_name_that_is_taken_stays_as_it_is(tmp_path: Path, by: str) -> None:
    path = tmp_path / "made"
    if by == "directory":
        path.mkdir()
        (path / "mine").write_text("")
    elif by == "file":
        path.write_text("mine")
    else:
        path.symlink_to("nowhere")
    before = path.lstat()
    with pytest.raises(FileExistsError) as raised, making_directory(path) as temporary:
        fill(temporary)
    assert raised.value.filename == str(path)
    assert os.listdir(tmp_path) == ["made"]
    assert (path.lstat().st_ino, path.lstat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_a_directory_that_cannot_get_its_name_is_still_there(tmp_path: Path) -> None:
    (tmp_path / "made").write_text("")
    (tmp_path / "made.tmp").mkdir()
    with pytest.raises(FileExistsError):
        name_directory(tmp_path / "made.tmp", tmp_path / "made")
    assert sorted(os.listdir(tmp_path)) == ["made", "made.tmp"]


def test_errors_say_the_name_that_the_user_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "v1.0" / "made"
    with pytest.raises(OSError) as raised, making_directory(path) as temporary:
        (temporary / "a" / "b").write_text("")
    assert file_error(raised.value) == f"{path}/a/b: No such file or directory; mend that"
    with pytest.raises(OSError) as raised, making_directory(path) as temporary:
        temporary.rmdir()
    assert file_error(raised.value).startswith(f"{path}: ")
    fill_the_disk(monkeypatch)
    with pytest.raises(OSError) as raised, making_directory(path) as temporary:
        fill(temporary)
    assert file_error(raised.value) == f"{path}: No space left on device; make room"
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("/a/b.0123abcd.tmp", "/a/b"),
        ("/a/b.h5.0123abcd.tmp/c.txt", "/a/b.h5/c.txt"),
        ("/a/data.zarr.tmp", "/a/data.zarr"),
        ("/a.tmp/b", "/a.tmp/b"),
    ],
)
def test_a_temporary_name_is_known_by_what_it_becomes(name: str, known: str) -> None:
    assert written_name(name) == written_name(os.fsencode(name)) == known


# ------------------------------------------------------------------ locks and processes


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
    assert kind == "directory" or path.read_text() == "", "it names nobody when nobody holds it"


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


def test_the_home_of_nobody_is_refused() -> None:
    with pytest.raises(UsageError, match="the home directory ~nobody-here is not known"):
        absolute_path("~nobody-here/studies")
