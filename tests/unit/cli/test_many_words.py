from __future__ import annotations

import click
import pytest

from merlin.cli.argv import ManyCommand, ManyOption, is_assignment, spread
from merlin.cli.options import check_pgen, parse_assignments
from merlin.errors import UsageError


def command() -> click.Command:
    @click.command(cls=ManyCommand)
    @click.argument("spec")
    @click.option("--vars", cls=ManyOption, accepts=is_assignment)
    @click.option("--steps", cls=ManyOption, leaves_last=True)
    @click.option("--workers", type=int)
    @click.option("--local", is_flag=True)
    def body(spec: str, vars: tuple[str, ...], steps: tuple[str, ...], workers: int, local: bool) -> None:
        """Nothing."""

    return body


@pytest.mark.parametrize(
    "words",
    [
        "spec.yaml --vars A=1 B=2 --local",
        "--vars A=1 B=2 spec.yaml --local",
        "--local spec.yaml --vars A=1 --vars B=2",
        "--local --vars A=1 B=2 -- spec.yaml",
    ],
)
def test_vars_takes_every_assignment_that_follows_wherever_the_spec_stands(words: str) -> None:
    context = command().make_context("x", words.split())
    assert context.params["vars"] == ("A=1", "B=2")
    assert context.params["spec"] == "spec.yaml"
    assert context.params["local"] is True


def test_the_last_word_is_the_argument_when_no_other_word_can_be() -> None:
    context = command().make_context("x", ["--steps", "a", "b", "WORKSPACE"])
    assert context.params["steps"] == ("a", "b")
    assert context.params["spec"] == "WORKSPACE"


def test_the_last_word_stays_a_value_when_the_argument_stands_elsewhere() -> None:
    context = command().make_context("x", ["--steps", "a", "b", "--workers", "2", "WORKSPACE"])
    assert context.params["steps"] == ("a", "b")
    context = command().make_context("x", ["WORKSPACE", "--steps", "a", "b"])
    assert context.params["steps"] == ("a", "b")


def test_the_value_of_another_option_is_no_argument() -> None:
    assert spread(command(), ["--steps", "a", "W", "--workers", "2"]) == [
        "--steps",
        "a",
        "W",
        "--workers",
        "2",
    ]


def test_an_option_without_words_is_an_error_of_the_command_line() -> None:
    with pytest.raises(click.UsageError):
        command().make_context("x", ["spec.yaml", "--vars"])


def test_values_may_hold_equals_signs_and_blanks() -> None:
    assert parse_assignments(("A=x=y", "B=", "C=a b")) == {"A": "x=y", "B": "", "C": "a b"}


@pytest.mark.parametrize("words", [("A",), ("=1",), ("1A=2",), ("A=1", "A=2")])
def test_bad_assignments_are_usage_errors(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parse_assignments(words)


def test_pargs_without_pgen_or_without_a_colon_are_usage_errors() -> None:
    with pytest.raises(UsageError):
        check_pgen(None, ("A:1",))
    with pytest.raises(UsageError):
        check_pgen("pgen.py", ("A1",))
    check_pgen("pgen.py", ("A:1:2",))
