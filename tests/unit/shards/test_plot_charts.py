"""What charts decide before they draw: scales, bins, words, which samples, which pictures."""

from __future__ import annotations

import msgspec.structs
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from merlin.shards.format.manifest_file import FieldInfo
from merlin.shards.plot import choice, images, lost, pictures, ticks
from merlin.shards.plot.colours import choose_colours
from merlin.shards.plot.coverage import rank_correlation
from merlin.shards.plot.ticks import Scale, choose_scale

rng = np.random.default_rng(3)

IMAGE = FieldInfo(
    name="image", kind="image", dtype="<f4", shape=(6, 8), units="1", description="", axes=(), compression="none",
    statistics=None,
)  # fmt: skip


def image(shape, **more):
    return msgspec.structs.replace(IMAGE, shape=shape, **more)


# scales


@pytest.mark.parametrize("factor", [1.0, 1e-9, 1e20])
def test_values_that_span_decades_get_a_logarithmic_axis(factor):
    assert choose_scale(factor * 10 ** (6 * rng.random(500))).is_log
    assert not choose_scale(factor * rng.random(500)).is_log
    assert not choose_scale(factor * rng.exponential(size=500)).is_log


@pytest.mark.parametrize(
    "values", [[], [np.nan, np.inf], [0.0], [5.0, 5.0], [-3.0, -3.0], [0.0, np.nan, 1.0]]
)
def test_every_column_has_limits(values):
    scale = choose_scale(np.array(values))
    assert np.isfinite([scale.lo, scale.hi]).all()
    assert scale.lo < scale.hi


def test_negative_values_and_zeros_stay_on_a_linear_axis():
    values = 10 ** (6 * rng.random(500))
    assert not choose_scale(values - 1e4).is_log
    assert not choose_scale(np.append(values, 0.0)).is_log


@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=200).filter(lambda v: min(v) < max(v)))
def test_bins_of_whole_numbers_hold_equally_many_of_them(values):
    scale = choose_scale(np.array(values, dtype=float))
    assume(not scale.is_log)  # positive ones that span decades, and crowd at the lower end
    edges = scale.edges(len(values))
    assert scale.is_whole
    assert len(edges) <= 62
    assert edges[0] <= min(values)
    assert max(values) <= edges[-1]
    assert np.histogram(values, edges)[0].sum() == len(values)
    assert (edges - 0.5 == np.round(edges - 0.5)).all()


@given(st.lists(st.floats(-1e300, 1e300, allow_nan=False), min_size=1, max_size=50))
def test_every_value_is_in_a_bin(values):
    scale = choose_scale(np.array(values))
    assert np.histogram(values, scale.edges(len(values)))[0].sum() == len(values)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.14159, "3.14"),
        (-2.5e15, "−2.5×10¹⁵"),
        (1234.5, "1234"),
        (1e-7, "1×10⁻⁷"),
        (np.nan, "–"),
    ],
)
def test_numbers_are_written_for_people(value, text):
    assert ticks.number(value) == text


def test_labels_name_units_and_the_power_that_the_ticks_leave_out():
    assert ticks.label("yield", "J", Scale(0, 4e15)) == "yield (10¹⁵ J)"
    assert ticks.label("yield", "1", Scale(0, 4)) == "yield"
    assert ticks.label("a_long_name_of_a_field", "W", None, room=1.0) == "a_long…field\n(W)"
    assert ticks.short("abcdefghij", 5) == "ab…ij"
    assert ticks.short("abc", 5) == "abc"


def test_rank_correlation_sees_order_alone():
    x = rng.random(200)
    assert rank_correlation(x, np.exp(9 * x)) == pytest.approx(1)
    assert rank_correlation(x, -x) == pytest.approx(-1)
    assert np.isnan(rank_correlation(x, np.ones(200)))
    assert rank_correlation(np.append(x, np.nan), np.append(x, 0.0)) == pytest.approx(1)
    assert rank_correlation(np.array([1, 1, 2, 2]), np.array([1, 2, 1, 2])) == pytest.approx(0)


# which samples


@given(st.lists(st.integers(0, 50), max_size=400), st.integers(1, 300))
def test_a_subset_is_ascending_without_repeats_and_always_the_same(sizes, num):
    rows = choice._rows(sizes, num)
    assert len(rows) <= max(num, 0)
    assert (np.diff(rows) > 0).all()
    assert not len(rows) or (rows[0] >= 0 and rows[-1] < sum(sizes))
    np.testing.assert_array_equal(rows, choice._rows(sizes, num))
    if sum(sizes) <= num:
        assert len(rows) == sum(sizes)


def test_of_very_many_shards_only_some_are_opened():
    rows = choice._rows([100] * 100_000, 5000)
    assert len(rows) == 5000
    assert len(np.unique(rows // 100)) <= 100
    positions = np.arange(0, 10_000_000, 7)
    rows = choice._rows([100] * 100_000, 500, positions)
    assert len(rows) == 500
    assert (np.diff(rows) > 0).all()
    assert len(np.unique(positions[rows] // 100)) <= 100


def test_the_note_says_what_is_drawn():
    every = choice.Choice(None, np.arange(5), np.zeros(5), ("train",), 5, "")
    assert every.note == "5 samples"
    assert every.note_of(2) == "a fixed subset of 2 of 5 samples"
    some = choice.Choice(None, np.arange(5), np.zeros(5), ("train",), 5000, "split train")
    assert some.note == "a fixed subset of 5 of 5,000 samples (split train)"


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=20), st.integers(1, 30))
def test_lost_tasks_are_picked_from_their_ranges(gaps, num):
    ranges, at = [], 0
    for gap, length in gaps:
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    tasks = lost._some(tuple(ranges), num)
    everything = [task for a, b in ranges for task in range(a, b)]
    assert set(tasks.tolist()) <= set(everything)
    assert len(set(tasks.tolist())) == min(num, len(everything))


# which pictures


@pytest.mark.parametrize("layout", ["hwc", "chw", "wch"])
def test_every_layout_gives_the_same_pictures(layout):
    truth = rng.random((6, 8, 2))  # h w c
    stored = truth.transpose([("hwc").index(letter) for letter in layout])
    info = image(stored.shape, layout=layout, channels=("low", "high"))
    views = pictures.views_of(info)
    assert [view.label for view in views] == ["low", "high"]
    for channel, view in enumerate(views):
        np.testing.assert_allclose(pictures._picture(stored, view, 99), truth[..., channel])


def test_a_volume_is_cut_in_the_middle_of_each_axis():
    stored = rng.random((4, 6, 8))
    views = pictures.views_of(image(stored.shape, kind="volume", axes=("z", "y", "x")))
    assert [view.label for view in views] == ["z = 2", "y = 3", "x = 4"]
    for view, plane in zip(views, [stored[2], stored[:, 3], stored[:, :, 4]], strict=True):
        np.testing.assert_allclose(pictures._picture(stored, view, 99), plane)


def test_bytes_in_three_channels_are_true_colours():
    views = pictures.views_of(image((3, 6, 8), layout="chw", dtype="|u1"))
    assert len(views) == 1
    stored = rng.integers(0, 256, (3, 6, 8)).astype(np.uint8)
    np.testing.assert_allclose(pictures._picture(stored, views[0], 99), stored.transpose(1, 2, 0) / 255)
    assert len(pictures.views_of(image((6, 8, 3), dtype="|u1", channels=("a", "b", "c")))) == 3
    assert len(pictures.views_of(image((6, 8, 3), channels=("red", "green", "blue")))) == 1


@pytest.mark.parametrize(
    "said",
    [
        {"ragged": True},
        {"ragged": True, "layout": "hwc", "axes": ("item", "y", "x", "channel")},
        {"kind": "series"},
        {"kind": "of a later version", "layout": "hwc"},
    ],
)
def test_fields_that_are_no_pictures_have_no_views(said):
    assert pictures.views_of(image((6, 8, 3), **said)) == []


@given(st.integers(1, 40), st.integers(1, 40))
def test_shrinking_keeps_the_mean_of_whole_blocks(height, width):
    picture = rng.random((height, width))
    small = images.shrink(picture, 10)
    assert max(small.shape) <= 10
    assert picture.min() - 1e-12 <= small.min() <= small.max() <= picture.max() + 1e-12
    even = np.ones((height, width))
    np.testing.assert_allclose(images.shrink(even, 10), 1)


@pytest.mark.parametrize(
    ("stack", "name", "scale"),
    [
        (rng.normal(size=(3, 20, 20)), "RdBu_r", ""),
        (rng.exponential(size=(3, 20, 20)) ** 6, "inferno", "√ scale"),
        (rng.random((3, 20, 20)), "inferno", ""),
        (10.0 ** np.arange(8)[:, None, None] * rng.random((8, 20, 20)), "inferno", "log scale"),
        (np.minimum(0.01, rng.normal(size=(3, 20, 20))), "RdBu_r", ""),
        (300 + rng.random((3, 20, 20)), "viridis", ""),
        (np.full((3, 20, 20), 7.0), "viridis", ""),
        (np.zeros((3, 20, 20)), "viridis", ""),
        (np.full((3, 20, 20), np.nan), "viridis", ""),
    ],
)
def test_colours_fit_what_the_values_are(stack, name, scale):
    colours = choose_colours([stack])
    assert (colours.name, colours.scale) == (name, scale)
    assert colours.lo < colours.hi
    colours.norm()(colours.within(stack[0]))
