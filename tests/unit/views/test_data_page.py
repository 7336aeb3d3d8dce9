from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from png_reader import read_png
from shard_study import FIELDS, make_study, values_of

from merlin.base.png import colour_map
from merlin.errors import NotADataSetError, UsageError
from merlin.plan.plan import PlannedField
from merlin.plan.plan_io import write_plan
from merlin.views.data_page import data_page, image_png
from merlin.views.study_page import StudyView

MORE = (
    PlannedField(name="photo", kind="image", dtype="uint8", shape=(3, 4, 3)),
    PlannedField(name="volume", kind="volume", dtype="float64", shape=(4, 5, 6)),
    PlannedField(name="gap", kind="image", dtype="float32", shape=(2, 2), finite=False),
    PlannedField(name="large", kind="image", dtype="float32", shape=(600, 30)),
)


def more_values(num: int) -> dict[str, np.ndarray]:
    task = np.arange(num, dtype=np.float64)
    gap = np.tile(np.array([[1.0, np.nan], [2.0, np.inf]], np.float32), (num, 1, 1))
    return {
        **values_of(np.arange(num)),
        "photo": (task[:, None, None, None] + np.arange(36).reshape(3, 4, 3)).astype(np.uint8),
        "volume": task[:, None, None, None] + np.arange(120.0).reshape(4, 5, 6),
        "gap": gap,
        "large": np.tile(np.arange(600, dtype=np.float32)[:, None], (num, 1, 30)),
    }


def make_data(path: Path, compression: str) -> Path:
    study = make_study(path, num=10, per_shard=4, fields=(*FIELDS, *MORE), compression=compression)
    study.collect(0, 10, outputs=more_values(10))
    return study.finish()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "study_20260101-000000", "none")


def test_a_page_has_the_description_and_every_field_that_can_be_looked_at(data: Path) -> None:
    page = data_page(data)
    assert page.description["num_rows"] == 10
    assert page.description["counts"]["ok"] == 10
    assert {
        image.field: (image.rows, image.height, image.width, len(image.channels)) for image in page.images
    } == {
        "image": (10, 6, 5, 2),
        "photo": (10, 3, 4, 1),
        "volume": (10, 5, 6, 3),
        "gap": (10, 2, 2, 1),
        "large": (10, 600, 30, 1),
    }
    assert json.loads(json.dumps(page.description["fields"]))


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_the_channels_of_a_row_stand_side_by_side_each_over_all_colours(
    tmp_path: Path, data: Path, compression: str
) -> None:
    directory = data if compression == "none" else make_data(tmp_path / "study_20260101-000001", compression)
    picture = read_png(image_png(directory, "image", 7))
    assert picture.shape == (6, 5 + 2 + 5, 4)
    values = values_of(np.arange(10))["image"][7]
    for channel, pixels in enumerate((picture[:, :5], picture[:, 7:])):
        these = values[..., channel]
        share = (these - these.min()) / (these.max() - these.min())
        index = np.round(255 * share).astype(int)
        assert np.abs(pixels[..., :3].astype(int) - colour_map()[index].astype(int)).max() <= 16
        assert (pixels[..., 3] == 255).all()
    assert (picture[:, 5:7, 3] == 0).all()


def test_true_colours_stay_and_what_is_not_finite_is_clear(data: Path) -> None:
    assert np.array_equal(read_png(image_png(data, "photo", 3))[..., :3], more_values(10)["photo"][3])
    assert read_png(image_png(data, "gap", 0))[..., 3].tolist() == [[255, 0], [255, 0]]


def test_large_pictures_are_averaged_down_and_volumes_are_cut_in_three_planes(data: Path) -> None:
    assert read_png(image_png(data, "large", 0)).shape == (300, 30, 4)
    assert read_png(image_png(data, "volume", 0)).shape == (5, 6 + 2 + 6 + 2 + 5, 4)


@pytest.mark.parametrize(
    ("field", "row"), [("energy", 0), ("nothing", 0), ("../image", 0), ("image", 10), ("image", -1)]
)
def test_there_is_no_picture_of_anything_else(data: Path, field: str, row: int) -> None:
    with pytest.raises(UsageError):
        image_png(data, field, row)


def test_a_directory_without_a_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotADataSetError):
        data_page(tmp_path)
    with pytest.raises(NotADataSetError):
        image_png(tmp_path, "image", 0)


def test_a_study_leads_to_its_finished_data_sets_and_their_counts(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study_20260101-000000", num=10, per_shard=4, fields=FIELDS)
    write_plan(study.workspace.plan_path, study.workspace.plan)
    view = StudyView(study.workspace.path)
    assert view.look().data_sets == ()
    study.collect_all()
    study.finish()
    from merlin.ledger.records import RangeRecord
    from merlin.ledger.writer import LedgerWriter

    with LedgerWriter(study.workspace.ledger_dir, "w1", sync=False) as ledger:
        ledger.append(RangeRecord(instance="collect", lo=0, hi=3, outcome=0))
        ledger.append(RangeRecord(instance="collect.manifest", lo=0, hi=1, outcome=0))
    page = view.look()
    (line,) = page.data_sets
    assert (line.key, line.samples.ok) == ("collect", 10)
    assert view.data_set("collect") == study.directory
    collect = next(step for step in page.steps if step.step == "collect")
    assert (collect.kind, collect.planned, collect.ok, collect.filtered) == ("aggregate", 4, 4, 0)
    assert page.state == "finished"
