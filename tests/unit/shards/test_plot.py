"""Pictures of whole data sets: files are valid and not blank, the page refers to nothing outside itself."""

from __future__ import annotations

import os
import re
import sys
import warnings
from functools import partial
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from picture_data import FIELDS, NUM, make_data
from shard_study import make_study

import merlin
from merlin.base.kinds import CHARTS
from merlin.errors import MissingExtraError, UsageError
from merlin.plan.plan import PlannedField
from merlin.plan.plan_io import write_plan
from merlin.shards import plot as plots
from merlin.shards.plot import histograms, request, sections, series, write_plot
from merlin.shards.plot.canvas import Section
from merlin.shards.plot.choice import choose
from merlin.shards.plot.figure import make_figure
from merlin.shards.plot.sections import _MAKERS, ChartSource, _scalar_quantities, make_sections
from merlin.shards.writing.outputs import item_rows

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def ens(tmp_path_factory):
    study = make_data(tmp_path_factory.mktemp("plot") / "w")
    write_plan(study.workspace.plan_path, study.workspace.plan)
    with merlin.open_shards(study.directory) as ensemble:
        yield ensemble


def pixels(path_or_figure):
    """RGB values of a picture, (h, w, 3) in 0 … 255."""
    from matplotlib.image import imread

    return np.round(255 * imread(path_or_figure)[..., :3]).astype(int)


def keys(sections):
    return [section.key for section in sections]


def test_everything_is_drawn_in_one_picture(ens, tmp_path):
    path = write_plot(ens, tmp_path / "all.png")
    picture = pixels(path)
    assert picture.shape[1] == 1500
    assert picture.shape[0] > 3000
    assert (picture.min(axis=2) < 250).mean() > 0.1
    assert len(np.unique(picture @ [1 << 16, 1 << 8, 1])) > 500  # colours


def test_a_picture_is_the_same_every_time(ens, tmp_path):
    paths = [write_plot(ens, tmp_path / f"{i}.png", request("scalars")) for i in range(2)]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    pages = [write_plot(ens, tmp_path / f"{i}.html", request("inputs")) for i in range(2)]
    assert pages[0].read_bytes() == pages[1].read_bytes()


@pytest.mark.parametrize("kind", ["inputs", "scalars", "series", "images", "volumes"])
def test_every_kind_can_be_drawn_alone(ens, kind):
    sections = make_sections(ens, request(kind))
    assert set(keys(sections)) == {kind}
    figure = ens.plot(kind)
    assert figure.get_figwidth() == 10
    assert figure._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("suffix", [".pdf", ".svg"])
def test_vector_files_for_papers(ens, tmp_path, suffix):
    path = write_plot(ens, tmp_path / f"paper{suffix}", request("scalars"))
    assert path.read_bytes()[:5] == {".pdf": b"%PDF-", ".svg": b"<?xml"}[suffix]


def test_lost_samples_are_marked_where_their_inputs_are(ens):
    section = make_sections(ens, request("inputs"))[0]
    lost = section.draw.args[0].lost
    assert {outcome: rows[:, 0].tolist() for outcome, rows in lost.items()} == {
        "failed": [14.0, 16.0],
        "filtered": [40.0],
        "missing": [118.0],
    }
    assert not make_sections(ens, request("inputs", split="train"))[0].draw.args[0].lost


def test_a_data_set_that_was_moved_away_is_drawn_without_lost_samples(ens, tmp_path):
    import shutil

    moved = tmp_path / "elsewhere"
    shutil.copytree(ens.path, moved)
    section = make_sections(merlin.open_shards(moved), request("inputs"))[0]
    assert section.draw.args[0].lost == {}


def test_pictures_are_named_by_sample_and_ordered_by_a_scalar(ens):
    sheet = make_sections(ens, request("images", num=5))[0].draw.args[0]
    assert len(sheet.titles) == 5
    assert sheet.ordered_by == "energy"
    assert [row.channel for row in sheet.rows] == ["soft", "hard", ""]
    assert sheet.rows[2].is_coloured
    ids = [int(title[1:]) for title in sheet.titles]
    assert ids == sorted(ids)
    for position, sample in enumerate(ids):
        index = int(np.flatnonzero(ens.sample_id == sample)[0])
        np.testing.assert_allclose(sheet.rows[1].pictures[position], ens["image"][index][1], rtol=1e-6)


def test_series_lie_over_the_field_that_their_axis_is_named_after(ens):
    fans = make_sections(ens, request("series"))[0].draw.args[0].fans
    assert [fan.name for fan in fans] == ["trace", "pair[left]", "pair[right]"]
    np.testing.assert_allclose(fans[0].x, np.linspace(0, 1, 8), rtol=1e-6)
    assert (fans[0].x_name, fans[0].x_units) == ("time", "us")


@pytest.mark.parametrize(("name", "axis"), [("trace", 0), ("pair", 0), ("pair", 1)])
def test_rows_that_are_large_are_thinned_one_by_one(ens, monkeypatch, name, axis):
    rows, at = np.array([3, 0, 7]), np.array([1, 0])
    for most in (sections._MOST_BYTES, 0):
        monkeypatch.setattr(sections, "_MOST_BYTES", most)
        found = sections._thinned(ens[name], rows, axis, at)
        np.testing.assert_array_equal(found, ens[name][rows].take(at, axis + 1))


def axes_of(chart, draw):
    """The axes of a chart's first panel."""
    return make_figure([Section("key", "Title", "note", chart.height, partial(draw, chart))], "", "").axes[0]


@pytest.mark.parametrize(
    ("end", "words"),
    [(1e-10, "time (10⁻¹⁰ s)"), (1.0, "time (s)"), (2e6, "time (10⁶ s)"), (0.0, "time (s)")],
)
def test_the_axis_of_a_series_fits_its_values_and_names_the_power_that_the_ticks_leave_out(end, words):
    x = np.unique(np.linspace(0, end, 5))
    fan = series.Fan("y", "V", "time", "s", x, np.ones((3, len(x))), np.arange(3))
    axes = axes_of(series.Fans((fan,)), series.draw)
    assert axes.get_xlabel() == words
    low, high = axes.get_xlim()
    assert (low, high) == (0, end) if end else low < 0 < high


def test_the_highest_bar_of_every_split_is_inside_its_panel():
    values = np.concatenate([np.arange(40.0), np.full(40, 7.5)])
    quantities = (histograms.SampleValues("y", "", values),)
    chart = histograms.Histograms(quantities, np.repeat([0, 1], 40), ("train", "test"))
    axes = axes_of(chart, histograms.draw)
    assert axes.get_ylim()[1] > max(bars.get_data().values.max() for bars in axes.patches)


@pytest.mark.parametrize("word", ["energy > 1000 and ", "x" * 300])
def test_a_long_note_stays_on_the_paper_and_off_the_chart(ens, word):
    section = replace(make_sections(ens, request("inputs"))[0], note=word * (300 // len(word)))
    figure = make_figure([section], "", "")
    figure.draw_without_rendering()
    note = figure.texts[1].get_window_extent()
    assert note.x1 < figure.bbox.x1
    assert note.y0 > figure.legends[0].get_window_extent().y1


def test_a_page_shows_a_directory_whose_name_is_no_text(tmp_path):
    study = make_data(Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9")))
    write_plan(study.workspace.plan_path, study.workspace.plan)
    with merlin.open_shards(study.directory) as ens:
        assert "caf?" in write_plot(ens, tmp_path / "page.html", request("inputs")).read_text()


def test_a_dollar_is_a_dollar(ens, tmp_path):
    path = write_plot(ens, tmp_path / "a.svg", request("inputs", query="note != '$a_{$'"))
    assert "$a_{$" in path.read_text()


def test_splits_and_queries_choose_the_samples(ens):
    some = make_sections(ens, request("scalars", split="train"))[0]
    assert f"{len(ens.splits['train'])} samples (split train)" in some.note
    some = make_sections(ens, request("scalars", query="energy > 1000"))[0]
    energies = some.draw.args[0].quantities[0].values
    assert len(energies) == int((ens["energy"][:] > 1000).sum())
    assert energies.min() > 1000
    assert "where energy > 1000" in some.note


def test_a_selection_is_drawn_alone(ens):
    sheet = make_sections(ens.take([5, 3, 9]), request("images"))[0]
    assert len(sheet.draw.args[0].titles) == 3
    assert "selected from 56" in sheet.note


def test_fields_are_drawn_by_name(ens):
    sections = make_sections(ens, request(fields=("trace", "x")))
    assert keys(sections) == ["inputs", "series"]
    sections = make_sections(ens, request(fields=("time",)))
    assert [fan.name for fan in sections[0].draw.args[0].fans] == ["time"]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"fields": ("imag",)}, "no field or input 'imag'.*image"),
        ({"split": "trian"}, "no split 'trian'.*train"),
        ({"kind": "graphs"}, "no graphs to draw"),
        ({"query": "energy < 0"}, "no samples to draw: where energy < 0"),
        ({"fields": ("note",)}, "nothing that can be drawn among the fields named"),
        ({"kind": "cakes"}, "no charts of kind 'cakes'"),
        *(({"num": num}, f"from 1 on, not {num}") for num in (0, -1, 2.5)),
    ],
)
def test_what_cannot_be_drawn_is_said(ens, wanted, words):
    with pytest.raises(UsageError, match=words):
        make_sections(ens, request(**wanted))


def test_another_suffix_is_refused(ens, tmp_path):
    with pytest.raises(UsageError, match=r"\.png, \.html"):
        write_plot(ens, tmp_path / "plot.gif")


def test_without_matplotlib_the_extra_is_named(ens, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (lambda: plots.plot(ens), lambda: write_plot(ens, tmp_path / "a.png")):
        with pytest.raises(MissingExtraError, match="plot"):
            draw()
    assert "<table>" in plots.summary_html(ens)


def test_every_kind_of_chart_is_drawn_by_something():
    assert set(_MAKERS) == set(CHARTS)


def test_an_empty_data_set_has_nothing_to_draw(tmp_path):
    study = make_study(tmp_path / "w", num=3, fields=FIELDS[:1])
    study.not_run = {(0, task) for task in range(3)}
    study.collect_all()
    with pytest.raises(UsageError, match="no samples to draw"):
        write_plot(merlin.open_shards(study.finish()), tmp_path / "a.png")


def test_one_sample_without_inputs_is_drawn(tmp_path):
    study = make_data(tmp_path / "w", fields=FIELDS[:6])
    ens = merlin.open_shards(study.directory)
    assert keys(make_sections(ens.take([4]), request())) == ["scalars", "series", "images"]
    assert write_plot(ens.take([4]), tmp_path / "one.png").stat().st_size > 10_000


@pytest.fixture(scope="module")
def ragged(tmp_path_factory):
    return merlin.open_shards(make_data(tmp_path_factory.mktemp("ragged") / "w", ragged=True).directory)


def test_graphs_and_ragged_fields_are_drawn(ragged, tmp_path):
    sections = make_sections(ragged, request(fields=("mesh", "track")))
    assert keys(sections) == ["scalars", "series", "graphs", "ragged"]
    graphs = sections[2].draw.args[0]
    first = int(graphs.drawings[0].title[1:].split(":")[0])
    assert graphs.drawings[0].title == f"#{first}: {3 + first % 7} nodes, {3 + first % 7} edges"
    np.testing.assert_array_equal(graphs.drawings[0].edges, ragged["mesh"][first]["edges"])
    assert "x and y" in sections[2].note
    assert [(q.name, q.values[:3].tolist()) for q in sections[3].draw.args[0].quantities] == [
        ("track", [0, 1, 2]),
        ("mesh: nodes", [3, 4, 5]),
        ("mesh: edges", [3, 4, 5]),
    ]
    fan = sections[1].draw.args[0].fans[0]
    assert np.isnan(fan.values[0]).all()
    assert fan.values[5, :5].tolist() == [0, 1, 2, 3, 4]
    assert write_plot(ragged, tmp_path / "ragged.png", request("graphs")).stat().st_size > 10_000


def test_items_that_are_images_or_numbers_are_counted_and_neither_drawn_nor_ordered_by(tmp_path):
    fields = (
        PlannedField(name="energy"),
        PlannedField(name="photo", kind="image", shape=(4, 5)),
        PlannedField(name="hits", ragged=True),
        PlannedField(name="frames", kind="image", ragged=True, shape=(4, 5)),
    )
    study = make_study(tmp_path / "w", num=4, fields=fields)
    tasks = np.arange(4)
    outputs = {
        "energy": 100.0 + tasks,
        "photo": np.ones((4, 4, 5)) * tasks[:, None, None],
        "hits": item_rows([1e3 ** np.arange(task + 1.0) for task in tasks], 4),
        "frames": item_rows([np.ones((task, 4, 5)) for task in tasks], 4),
    }
    assert not study.collect(0, 4, outputs=outputs)
    with merlin.open_shards(study.finish()) as ens:
        sections = {section.key: section.draw.args[0] for section in make_sections(ens, request())}
        assert [row.field for row in sections["images"].rows] == ["photo"]
        assert sections["images"].ordered_by == "energy"
        assert [q.name for q in sections["ragged"].quantities] == ["hits", "frames"]
        with pytest.raises(UsageError, match="no images to draw among the fields named"):
            make_sections(ens, request("images", fields=("frames",)))


# the page


class _Page(HTMLParser):
    """Collects what could reach outside, and the words of the tables."""

    def __init__(self, text):
        super().__init__()
        self.links, self.ids, self.words, self.open = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src", "xlink:href", "action", "srcset"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)
        assert tag not in ("script", "iframe", "link", "object", "embed")

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def page(ens, tmp_path_factory):
    return write_plot(ens, tmp_path_factory.mktemp("page") / "page.html").read_text(encoding="utf-8")


def test_the_page_refers_to_nothing_outside_itself(page):
    assert not re.search(r"https?:|//[a-z]", re.sub(r'(href|src)="data:[^"]*"', "", page))
    assert not re.search(r"@import|url\((?!#)", page)
    found = _Page(page)
    for link in found.links:
        assert link.startswith(("#", "data:image/png"))
    assert "default-src 'none'" in page


def test_every_reference_inside_the_page_leads_somewhere(page):
    found = _Page(page)
    targets = {link[1:] for link in found.links if link.startswith("#")}
    targets |= set(re.findall(r"url\(#([^)]+)\)", page))
    assert targets <= set(found.ids)


def test_the_page_follows_the_theme_of_its_reader(page):
    assert "prefers-color-scheme: dark" in page
    body = page[page.index("<body") :]
    for colour in re.findall(r"(?:fill|stroke): *(#[0-9a-f]{6})", body):
        assert colour not in ("#1d2330", "#5d6675", "#fefefe", "#000000"), (
            "words must not vanish on dark paper"
        )


def test_the_page_tells_what_describe_tells(page):
    words = " ".join(_Page(page).words)
    for expected in (
        "what it costs",
        "RuntimeError: it broke & burned",
        "count != 0 or energy != 100",
        "56",
        "soft",
    ):
        assert expected in words
    for section in ("fields", "inputs", "splits", "provenance", "left-out"):
        assert f'<section id="{section}">' in page


def test_what_users_wrote_cannot_change_the_page(tmp_path):
    from msgspec.structs import replace

    evil = "<script>alert(1)</script>"
    fields = (replace(FIELDS[0], units=evil, description=evil), replace(FIELDS[3], axes=(evil,)))
    study = make_data(tmp_path / "w", fields=fields)
    text = write_plot(merlin.open_shards(study.directory), tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_a_notebook_shows_a_summary(ens):
    html = ens._repr_html_()
    assert "56 samples" in html
    assert f"planned {NUM} = ok 56" in html
    assert "3 of 56 samples" in ens.take([1, 2, 3])._repr_html_()


@pytest.mark.parametrize(
    ("large", "also"), [(1e308, "png"), (1e280, None), (1e155, None), (np.inf, None), (np.nan, "html")]
)
def test_values_that_cannot_be_drawn_are_left_out_and_counted(tmp_path, large, also):
    mesh = PlannedField(name="mesh", kind="ragged", ragged=True, graph="mesh")
    fields = (
        PlannedField(name="y", finite=False),
        PlannedField(name="wave", dtype="complex128", finite=False),
        PlannedField(name="curve", kind="series", shape=(4,), finite=False),
        PlannedField(name="image", kind="image", shape=(6, 5), layout="hw", axes=("y", "x"), finite=False),
        replace(mesh, name="mesh.positions", shape=(3,), role="positions", finite=False),
        replace(mesh, name="mesh.edges", shape=(2,), role="edges", dtype="int64"),
    )
    study = make_study(tmp_path / "w", num=20, fields=fields)
    y = np.resize([large, 1.0, -large, 2.0, 0.0], 20)
    outputs = {
        "y": y,
        "wave": y + 1j,
        "curve": np.resize(y, (20, 4)),
        "image": np.resize(y, (20, 6, 5)),
        "mesh.positions": item_rows([np.resize(np.roll(y, i), (4, 3)) for i in range(20)], 20),
        "mesh.edges": item_rows([np.array([[0, 1], [2, 3]])] * 20, 20),
    }
    assert not study.collect(0, 20, outputs=outputs)
    with merlin.open_shards(study.finish()) as ens, warnings.catch_warnings():
        warnings.simplefilter("error")
        for kind in ("svg", also) if also else ("svg",):
            write_plot(ens, tmp_path / f"all.{kind}")
    assert ("8 not drawn" in (tmp_path / "all.svg").read_text()) == (not large <= 1e280)


def test_tiny_and_large_values_have_axes(tmp_path):
    values = [np.linspace(-1, 1, 60) * 1e-310, 10.0 ** np.linspace(-300, 279, 60), np.full(60, 1e280)]
    values += [10.0 ** np.minimum(np.linspace(-290, 900, 60), 279)[::-1]]
    study = make_study(tmp_path / "w", num=60, fields=[PlannedField(name=f"y{i}") for i in range(4)])
    with np.errstate(all="ignore"):
        assert not study.collect(0, 60, outputs={f"y{i}": y for i, y in enumerate(values)})
        directory = study.finish()
    with merlin.open_shards(directory) as ens, warnings.catch_warnings():
        warnings.simplefilter("error")
        write_plot(ens, tmp_path / "all.png")


def test_complex_numbers_are_drawn_by_their_magnitude(tmp_path):
    fields = (
        PlannedField(name="wave", dtype="complex128"),
        PlannedField(name="signal", kind="series", dtype="complex64", shape=(4,)),
        PlannedField(
            name="phase", kind="image", dtype="complex64", shape=(6, 5), layout="hw", axes=("y", "x")
        ),
    )
    study = make_study(tmp_path / "w", num=20, fields=fields)
    unit = np.exp(1j * np.arange(20))
    outputs = {
        "wave": unit * np.arange(20),
        "signal": np.repeat(unit[:, None], 4, axis=1).astype("c8"),
        "phase": np.broadcast_to(unit[:, None, None], (20, 6, 5)).astype("c8"),
    }
    assert not study.collect(0, 20, outputs=outputs)
    with merlin.open_shards(study.finish()) as ens, warnings.catch_warnings():
        warnings.simplefilter("error")
        source = ChartSource(request(), choose(ens))
        (scalar,) = _scalar_quantities(source)
        assert scalar.name == "|wave|"
        np.testing.assert_allclose(scalar.values, np.arange(20))
        write_plot(ens, tmp_path / "all.png")
