"""Built-in sampling: determinism, bounds, and each method's own property."""

import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.errors import UsageError
from merlin.spec.defaults import METHODS
from merlin.workspace import sampling
from merlin.workspace.samples import open_samples
from merlin.workspace.sampling import Design, check_design, generate_samples, write_samples

BOUNDS = {"A": (0.0, 1.0), "B": (-5.0, 5.0)}


def design(method, num=64, seed=1, bounds=BOUNDS):
    return Design(method=method, num=num, bounds=bounds, seed=seed)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_samples(method):
    first = generate_samples(design(method), list(BOUNDS))
    assert first.shape == (64, 2)
    assert np.array_equal(first, generate_samples(design(method), list(BOUNDS)))
    if method != "grid":
        assert not np.array_equal(first, generate_samples(design(method, seed=2), list(BOUNDS)))


@settings(max_examples=repeats(15, 300), deadline=None)
@given(
    st.sampled_from([m for m in METHODS if m not in ("normal", "grid")]),
    st.integers(1, 200),
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, 1e6)), min_size=1, max_size=4),
)
def test_samples_stay_inside_their_bounds(method, num, spans):
    bounds = {f"L{i}": (low, low + span) for i, (low, span) in enumerate(spans)}
    rows = generate_samples(design(method, num, bounds=bounds), list(bounds))
    assert rows.shape == (num, len(bounds))
    for column, (low, high) in zip(rows.T, bounds.values(), strict=True):
        slack = 1e-9 * max(1.0, abs(low), abs(high))
        assert (column >= low - slack).all() and (column <= high + slack).all()


def test_a_latin_hypercube_has_one_sample_in_every_stratum():
    rows = generate_samples(design("latin_hypercube", 50), list(BOUNDS))
    assert sorted(np.floor(rows[:, 0] * 50).astype(int)) == list(range(50))


def test_normal_bounds_are_mean_and_standard_deviation():
    rows = generate_samples(design("normal", 20_000, bounds={"A": (3.0, 0.5)}), ["A"])
    assert abs(rows.mean() - 3) < 0.02 and abs(rows.std() - 0.5) < 0.02


def test_a_grid_holds_every_combination_and_both_ends():
    rows = generate_samples(design("grid", (3, 2)), list(BOUNDS))
    assert rows.tolist() == [[0, -5], [0, 5], [0.5, -5], [0.5, 5], [1, -5], [1, 5]]
    assert design("grid", 9).axes == (3, 3)


def test_columns_follow_the_labels_not_the_bounds():
    rows = generate_samples(design("uniform"), ["B", "A"])
    assert rows[:, 0].min() < -1 and rows[:, 1].min() >= 0


@pytest.mark.parametrize("method", METHODS)
def test_writing_in_blocks_gives_the_samples_of_one_call(tmp_path, method, monkeypatch):
    whole = generate_samples(design(method), list(BOUNDS))
    monkeypatch.setattr(sampling, "_BLOCK_ROWS", 10)
    assert write_samples(tmp_path / "new" / "s.npy", design(method), list(BOUNDS)) == 64
    assert np.array_equal(np.load(tmp_path / "new" / "s.npy"), whole)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["s.npy"]


def test_text_files_hold_the_same_values(tmp_path):
    write_samples(tmp_path / "s.csv", design("sobol"), list(BOUNDS))
    rows = open_samples(tmp_path / "s.csv", list(BOUNDS)).rows(0, 64)
    assert np.array_equal(rows["B"], generate_samples(design("sobol"), list(BOUNDS))[:, 1])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (design("monte_carlo"), "latin_hypercube"),
        (design("uniform", bounds={"A": (0, 1)}), "no bounds for B"),
        (design("uniform", bounds={**BOUNDS, "C": (0, 1)}), "unknown C"),
        (design("uniform", bounds={**BOUNDS, "B": (1, 0)}), "above"),
        (design("uniform", bounds={**BOUNDS, "B": (0, float("inf"))}), "finite"),
        (design("normal", bounds={**BOUNDS, "B": (0, -1)}), "negative"),
        (design("grid", 10), "take 9 or 16"),
        (design("grid", (3,)), "one number of points for each"),
        (design("sobol", (3, 3)), "one number"),
        (design("sobol", 0), "at least one"),
    ],
)
def test_a_design_that_cannot_be_made_says_what_to_change(wrong, words):
    with pytest.raises(UsageError, match=words):
        check_design(wrong, list(BOUNDS))


@settings(max_examples=repeats(15, 300), deadline=None)
@given(st.sampled_from(["sobol", "halton", "uniform", "normal"]), st.integers(1, 300), st.integers(1, 300))
def test_a_design_that_gets_more_rows_goes_on_where_it_ended(method, first, more):
    old = generate_samples(design(method, first), list(BOUNDS))
    new = generate_samples(design(method, first + more), list(BOUNDS), first)
    at_once = generate_samples(design(method, first + more), list(BOUNDS))
    assert np.array_equal(np.concatenate([old, new]), at_once)


def test_a_design_goes_on_across_blocks(monkeypatch):
    monkeypatch.setattr(sampling, "_BLOCK_ROWS", 16)
    for method in ("sobol", "halton", "uniform", "normal"):
        new = generate_samples(design(method, 100), list(BOUNDS), 41)
        assert np.array_equal(new, generate_samples(design(method, 100), list(BOUNDS))[41:])


def test_more_rows_of_a_latin_hypercube_are_another_one():
    new = generate_samples(design("latin_hypercube", 80), list(BOUNDS), 30)
    assert sorted(np.floor(new[:, 0] * 50).astype(int)) == list(range(50))
    assert not np.array_equal(new, generate_samples(design("latin_hypercube", 50), list(BOUNDS)))
    assert np.array_equal(new, generate_samples(design("latin_hypercube", 80), list(BOUNDS), 30))


def test_a_grid_cannot_go_on():
    with pytest.raises(UsageError, match="grid cannot get more points"):
        generate_samples(design("grid", 16), list(BOUNDS), 4)


def test_a_sobol_design_does_not_go_on_into_the_longer_sequence():
    with pytest.raises(UsageError, match="another sequence"):
        sampling.check_continuation(design("sobol", (1 << 30) + 1), 1000)


def test_the_new_rows_alone_are_written(tmp_path):
    for name in ("a.npy", "a.csv"):
        assert write_samples(tmp_path / name, design("sobol", 20), list(BOUNDS), 12) == 8
        table = open_samples(tmp_path / name, list(BOUNDS))
        whole = generate_samples(design("sobol", 20), list(BOUNDS))
        assert np.array_equal(table.rows(0, 8)["B"], whole[12:, 1])


@pytest.mark.parametrize("num", [1, 7, 5_000])
@pytest.mark.parametrize("first", [0, 30])
def test_a_latin_hypercube_has_the_numbers_of_scipy(num: int, first: int) -> None:
    from scipy.stats import qmc

    engine = qmc.LatinHypercube(d=2, seed=np.random.default_rng([1, first] if first else 1))
    low, high = np.array(list(BOUNDS.values())).T
    found = generate_samples(design("latin_hypercube", first + num), list(BOUNDS), first)
    assert np.array_equal(found, engine.random(num) * (high - low) + low)
