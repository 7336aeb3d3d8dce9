"""What an error leaves in a directory that is written file by file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from msgspec import Struct

from merlin.shards.unfinished import UnfinishedDirectory


class _File(Struct, frozen=True):
    name: str


def _begin(folder: Path) -> UnfinishedDirectory[_File]:
    return UnfinishedDirectory(folder, "export", "files.jsonl", _File)


@pytest.mark.parametrize("is_there", [False, True])
def test_nothing_is_left_where_nothing_was_written(tmp_path: Path, is_there: bool) -> None:
    folder = tmp_path / "out"
    if is_there:
        folder.mkdir()
    with pytest.raises(ZeroDivisionError), _begin(folder) as directory:
        directory.start({"of": "study"}, [])
        raise ZeroDivisionError
    assert [path.name for path in tmp_path.rglob("*")] == (["out"] if is_there else [])


def test_the_record_stays_beside_half_a_file(tmp_path: Path) -> None:
    """Without the record, the next call would refuse the directory, because it is not empty."""
    with pytest.raises(ZeroDivisionError), _begin(tmp_path) as directory:
        directory.start({"of": "study"}, [])
        (tmp_path / "half").touch()
        raise ZeroDivisionError
    assert _begin(tmp_path).request() == {"of": "study"}


@pytest.mark.parametrize(
    ("number", "todo"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EFBIG, "allow larger files (ulimit -f unlimited)"),
        (errno.EIO, "mend that"),
    ],
)
def test_an_error_of_the_disk_says_that_the_same_command_goes_on(
    tmp_path: Path, number: int, todo: str
) -> None:
    with pytest.raises(OSError) as error, _begin(tmp_path) as directory:
        directory.start({"of": "study"}, [])
        (tmp_path / "half").touch()
        raise OSError(number, os.strerror(number))
    assert error.value.__notes__ == [f"{todo}, then give the same command again: finished files are kept"]
