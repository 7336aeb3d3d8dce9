"""Sample directories; the cases were recorded from Merlin 1.13."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.plan.layout import SampleLayout

# (samples, level_max_dirs, depth, first path, last path, directories of all levels)
RECORDED = [
    (1, 25, 0, "", "", 0),
    (2, 25, 1, "00", "01", 2),
    (10, 25, 1, "00", "09", 10),
    (25, 25, 1, "00", "24", 25),
    (26, 25, 2, "00/00", "01/00", 28),
    (50, 25, 2, "00/00", "01/24", 52),
    (625, 25, 2, "00/00", "24/24", 650),
    (626, 25, 3, "00/00/00", "01/00/00", 654),
    (7, 3, 2, "0/0", "2/0", 10),
    (9, 3, 2, "0/0", "2/2", 12),
    (10, 3, 3, "0/0/0", "1/0/0", 16),
    (30, 10, 2, "00/00", "02/09", 33),
    (101, 100, 2, "000/000", "001/000", 103),
    (5, 5, 1, "0", "4", 5),
    (1, 2, 0, "", "", 0),
    (3, 2, 2, "0/0", "1/0", 5),
]
layouts = st.builds(SampleLayout, st.integers(1, 10**12), st.integers(2, 1000))
small_layouts = st.builds(SampleLayout, st.integers(0, 300), st.integers(2, 30))


@pytest.mark.parametrize(("num", "width", "depth", "first", "last", "directories"), RECORDED)
def test_directories_are_those_of_upstream(num, width, depth, first, last, directories):
    layout = SampleLayout(num, width)
    assert (layout.depth, layout.path(0), layout.path(num - 1)) == (depth, first, last)
    assert layout.num_directories == directories


@given(layouts, st.data())
def test_a_path_has_the_digits_of_its_sample(layout, data):
    sample = data.draw(st.integers(0, layout.num - 1))
    names = [name for name in layout.path(sample).split("/") if name]
    number = 0
    for name in names:
        number = number * layout.level_max_dirs + int(name)
    assert (number, len(names)) == (sample, layout.depth)


@given(small_layouts, st.data())
def test_a_range_of_paths_is_the_paths_of_its_samples(layout, data):
    lo = data.draw(st.integers(0, layout.num))
    hi = data.draw(st.integers(lo, layout.num))
    paths = [layout.path(i) for i in range(lo, hi)]
    assert list(layout.iter_paths(lo, hi)) == paths


@given(small_layouts)
def test_every_directory_is_counted_once_and_holds_no_more_than_allowed(layout):
    directories = set()
    for path in layout.iter_paths():
        parts = path.split("/")
        directories |= {"/".join(parts[: i + 1]) for i in range(len(parts)) if path}
    assert len(directories) == layout.num_directories
    entries = {}
    for name in directories:
        entries.setdefault(name.rpartition("/")[0], []).append(name)
    assert all(len(names) <= layout.level_max_dirs for names in entries.values())


def test_all_paths_are_separated_by_blanks():
    assert SampleLayout(3).paths_all() == "00 01 02"
    assert SampleLayout(26).paths_all().startswith("00/00 00/01 ")


def test_the_glob_has_one_star_per_level():
    assert [SampleLayout(n).glob for n in (1, 2, 26)] == ["", "*", "*/*"]


def test_a_sample_outside_the_study_has_no_path():
    with pytest.raises(IndexError):
        SampleLayout(10).path(10)


def test_one_entry_per_directory_cannot_hold_two_samples():
    with pytest.raises(ValueError):
        SampleLayout(2, 1)
