"""Which updates of a study need somebody's consent."""

from __future__ import annotations

import pytest

from merlin.api.step_changes import UpdateCost


@pytest.mark.parametrize(
    ("again_s", "is_asked"), [(0.0, False), (4.0, False), (5.0, False), (6.0, True), (100.0, True)]
)
def test_repeating_more_than_a_twentieth_of_the_work_needs_consent(again_s: float, is_asked: bool) -> None:
    cost = UpdateCost(gone=(), num_fewer=0, num_again=3, again_s=again_s, spent_s=100.0)
    assert cost.needs_consent == is_asked


def test_nothing_to_repeat_needs_no_consent() -> None:
    assert not UpdateCost(gone=(), num_fewer=0, num_again=0, again_s=0.0, spent_s=0.0).needs_consent


@pytest.mark.parametrize(("gone", "num_fewer"), [(("a",), 0), ((), 1)])
def test_what_leaves_the_study_needs_consent(gone: tuple[str, ...], num_fewer: int) -> None:
    cost = UpdateCost(gone=gone, num_fewer=num_fewer, num_again=0, again_s=0.0, spent_s=100.0)
    assert cost.removes
    assert cost.needs_consent
