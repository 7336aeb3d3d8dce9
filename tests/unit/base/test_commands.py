"""Short commands of others are limited in time and leave nothing behind."""

import pytest

from merlin.base.commands import run_command

LONG_S = 120.0  # a command that ends at once never takes so long


def test_what_a_command_says_and_how_it_ends():
    result = run_command(["sh", "-c", "echo out; echo err >&2; exit 3"], limit_s=LONG_S)
    assert (result.code, result.output, result.error) == (3, "out\n", "err\n")
    assert run_command(["sh", "-c", "kill -9 $$"], limit_s=LONG_S).code == -9
    assert run_command(["sh", "-c", "printf '\\377'"], limit_s=LONG_S).output == "\ufffd"


def test_a_command_that_is_late_is_killed():
    assert run_command(["sleep", "600"], limit_s=0.1).code is None


def test_what_a_command_leaves_behind_keeps_nobody_waiting():
    result = run_command(["sh", "-c", "sleep 600 & echo done"], limit_s=LONG_S)
    assert (result.code, result.output) == (0, "done\n")


def test_a_command_has_the_environment_that_it_is_given_and_no_input():
    result = run_command(
        ["sh", "-c", "echo $A; cat"], limit_s=LONG_S, environment={"A": "b", "PATH": "/usr/bin:/bin"}
    )
    assert result.output == "b\n"


def test_a_command_that_does_not_exist_is_an_error():
    with pytest.raises(OSError):
        run_command(["/nowhere/at/all"], limit_s=LONG_S)
