"""A field of a kind of a later version is left out where it has no meaning, and stops nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from in_process import merlin
from later_kinds import make_later_data

from merlin.errors import UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.plot import request
from merlin.shards.plot.sections import make_sections


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_later_data(tmp_path_factory.mktemp("later"))


def test_charts_leave_it_out(data, tmp_path):
    pytest.importorskip("matplotlib")
    assert merlin("shards", "plot", data, "--out", tmp_path / "all.png") == 0
    with open_shards(data) as ens:
        assert [section.key for section in make_sections(ens, request())] == ["inputs", "scalars", "scalars"]


def test_there_are_no_images_to_draw(data, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert merlin("shards", "plot", data, "--kind", "images", "--out", tmp_path / "none.png") == 2
    assert "has no images to draw" in capsys.readouterr().err


def test_drawing_it_by_name_is_refused(data):
    with open_shards(data) as ens:
        with pytest.raises(
            UsageError, match=r"'s' in .* is of kind 'spectrum', .* leave it out of the fields"
        ):
            make_sections(ens, request(fields=["y", "s"]))
        assert make_sections(ens, request(fields=["y"]))


def test_an_export_to_lbann_has_it_among_the_arrays(data, tmp_path):
    assert merlin("shards", "export", data, "--to", "lbann", "--out", tmp_path / "out") == 0
    schema = yaml.safe_load((tmp_path / "out" / "data_schema.yaml").read_text())
    assert set(schema["outputs"]) == {"scalars", "arrays"}
    assert set(schema["outputs"]["arrays"]) == {"s"}
