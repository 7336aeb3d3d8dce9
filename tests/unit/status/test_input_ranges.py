"""Which inputs go with a failure: the test is exact, and chance is not mistaken for a cause."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from status_study import FAILED, OK, add, chunk, failed, make_workspace

from merlin.status.failures import group_failures
from merlin.status.input_ranges import Population, at_least, suspicious_ranges


@given(st.integers(1, 400), st.data())
def test_the_probability_is_that_of_fishers_exact_test(total, data):
    from scipy.stats import fisher_exact, hypergeom  # half a second, in every process that collects tests

    marked, drawn = data.draw(st.integers(0, total)), data.draw(st.integers(0, total))
    least = data.draw(st.integers(0, total))
    p = at_least(least, drawn=drawn, marked=marked, total=total)
    assert p == pytest.approx(hypergeom.sf(least - 1, total, marked, drawn), rel=1e-6, abs=1e-300)
    if max(0, drawn + marked - total) <= least <= min(drawn, marked):
        table = [[least, drawn - least], [marked - least, total - marked - drawn + least]]
        assert p == pytest.approx(fisher_exact(table, "greater").pvalue, rel=1e-6, abs=1e-300)


def population(failed_values, ok_values, names=("x",)):
    failed_values, ok_values = np.atleast_2d(failed_values), np.atleast_2d(ok_values)
    return Population(
        failed=dict(zip(names, failed_values, strict=True)),
        ok=dict(zip(names, ok_values, strict=True)),
        num_failed=failed_values.shape[1],
        num_ok=ok_values.shape[1],
    )


def test_a_range_in_the_middle_is_found_with_its_rates():
    x = np.random.default_rng(1).random(2000)
    is_bad = (x > 0.4) & (x < 0.5)
    (found,) = suspicious_ranges(population(x[is_bad], x[~is_bad]))
    assert found.low <= 0.41
    assert found.high >= 0.49
    assert found.high - found.low < 0.25
    assert found.rate_inside > 0.4
    assert found.rate_outside < 0.01
    assert found.p < 1e-50


def test_an_input_with_few_values_is_compared_value_by_value():
    values = np.repeat([1.0, 2.0, 3.0], 100)
    fails = (values == 2.0) & (np.arange(300) % 2 == 0)
    (found,) = suspicious_ranges(population(values[fails], values[~fails]))
    assert (found.low, found.high, found.rate_inside) == (2.0, 2.0, 0.5)


def test_only_the_input_that_matters_is_named():
    inputs = np.random.default_rng(2).random((5, 1500))
    is_bad = inputs[3] > 0.9
    found = suspicious_ranges(population(inputs[:, is_bad], inputs[:, ~is_bad], "abcde"))
    assert [each.input for each in found] == ["d"]


def test_chance_is_rarely_taken_for_a_cause():
    """At most one study in a hundred may be misled, over all of its inputs."""
    random = np.random.default_rng(3)
    misled = 0
    for _ in range(100):
        inputs, fails = random.normal(size=(6, 400)), random.random(400) < 0.1
        misled += bool(suspicious_ranges(population(inputs[:, fails], inputs[:, ~fails], "abcdef")))
    assert misled <= 4


@pytest.mark.parametrize("values", [np.ones(50), np.full(50, np.nan), np.linspace(0, 1, 2)])
def test_nothing_is_said_about_constants_and_about_two_failures(values):
    assert suspicious_ranges(population(values, values)) == []


def test_the_ranges_of_a_study_come_from_its_samples_and_parameters(tmp_path):
    """X0 of sample i is 2 i: samples from 150 on fail, of one parameter's instance."""
    workspace = make_workspace(tmp_path / "w", num=200)
    outcomes = [FAILED if i >= 150 else OK for i in range(200)]
    causes = tuple(failed(i, tail="diverged") for i in range(150, 200))
    add(workspace, chunk("sim/P.1", 0, outcomes, failures=causes), chunk("sim/P.2", 0, [OK] * 200))
    (group,) = group_failures(workspace)
    ranges = {each.input: each for each in group.ranges}
    assert set(ranges) == {"P", "X0", "step"}
    assert (ranges["P"].low, ranges["P"].high, ranges["P"].rate_inside) == (1.0, 1.0, 0.25)
    assert 290 <= ranges["X0"].low <= 310
    assert ranges["X0"].high == 398.0
    assert ranges["X0"].rate_inside == pytest.approx(0.5, abs=0.05)
    assert group_failures(workspace, with_ranges=False)[0].ranges == ()


def test_samples_that_are_gone_leave_the_parameters(tmp_path):
    workspace = make_workspace(tmp_path / "w", num=200)
    causes = tuple(failed(i) for i in range(50))
    add(workspace, chunk("sim/P.1", 0, [FAILED] * 50 + [OK] * 150, failures=causes))
    add(workspace, chunk("sim/P.2", 0, [OK] * 200))
    (workspace.path / "merlin_info/samples.npy").unlink()
    assert [each.input for each in group_failures(workspace)[0].ranges] == ["P"]
