"""Numbers as people read them."""

from __future__ import annotations

import pytest

from merlin.base.text import count, cut, duration, percent, rate, size, some_of


@pytest.mark.parametrize(("num", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3.2e12, "3.2 TB")])
def test_sizes_are_in_powers_of_a_thousand(num: float, text: str) -> None:
    assert size(num) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.44, "0.4 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_are_as_exact_as_people_need_them(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_of_a_long_list_the_first_items_are_named() -> None:
    assert some_of([1, 2], 2) == "1, 2"
    assert some_of(iter("abc"), 2) == "a, b, …"
    assert some_of(range(10**12), 1, more=" …") == "0 …"
    assert some_of([]) == ""


def test_a_long_text_is_cut_to_the_room_that_it_has() -> None:
    assert [cut("merlin", most) for most in (6, 4, 1, 0)] == ["merlin", "mer…", "m…", "m…"]


def test_one_is_singular() -> None:
    assert (count(1, "task"), count(1200, "task"), count(2, "entry", "entries")) == (
        "1 task",
        "1,200 tasks",
        "2 entries",
    )


@pytest.mark.parametrize(
    ("per_second", "text"), [(None, ""), (1234.4, "1,234/s"), (0.52, "0.5/s"), (0.05, "3.0/min")]
)
def test_rates_are_given_in_the_unit_that_fits(per_second: float | None, text: str) -> None:
    assert rate(per_second) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 5, "0"),
        (5, 5, "100"),
        (4998, 5000, "99.9"),
        (1, 8, "12.5"),
        (0.0007, 1.0, "0.07"),
        (1, 10**9, "0.001"),
    ],
)
def test_a_share_is_nothing_or_all_only_if_it_is_exactly_that(part: float, whole: float, text: str) -> None:
    assert percent(part, whole) == text
