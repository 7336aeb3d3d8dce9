"""What a user is told to do about errors of the machine."""

from __future__ import annotations

import errno

import pytest

from merlin.execution.shell import machine_error


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.ENOSPC, "make room"),
        (errno.EDQUOT, "make room"),
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EAGAIN, "ulimit -u"),
        (errno.ENOMEM, "memory"),
        (errno.EROFS, "writable"),
    ],
)
def test_the_advice_fits_the_error(number, advice):
    told = str(machine_error(OSError(number, "x", "/some/file")))
    assert advice in told
    assert "/some/file" in told
    assert ("make room" in told) == (advice == "make room")


def test_what_is_no_error_of_the_machine_has_none():
    assert machine_error(OSError(errno.ENOENT, "x")) is None
