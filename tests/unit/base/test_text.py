"""Numbers as people read them."""

from __future__ import annotations

import pytest

from merlin.base.text import count, duration, rate, size


@pytest.mark.parametrize(("num", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (3.2e12, "3.2 TB")])
def test_sizes_are_in_powers_of_a_thousand(num: float, text: str) -> None:
    assert size(num) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, ""), (0.44, "0.4 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_are_as_exact_as_people_need_them(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


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
