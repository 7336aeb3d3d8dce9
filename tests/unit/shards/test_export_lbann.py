"""LBANN exports, read by a reader that was written from LBANN's documentation alone (lbann_reader.py)."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest
from export_data import BAD, Made, make_kinds
from lbann_reader import Reader, read_sample_list
from shard_study import make_study

from merlin.errors import UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.export.base import ExportOptions
from merlin.shards.export.run import export

FIELDS = ("energy", "count", "flag", "half", "history", "image", "view", "volume", "note")


@pytest.fixture(scope="module")
def kinds(tmp_path_factory) -> Made:
    return make_kinds(tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def out(kinds, tmp_path_factory):
    directory = tmp_path_factory.mktemp("lbann")
    export(
        kinds.path, directory, ExportOptions(format="lbann", fields=FIELDS, samples_per_file=25, trainers=3)
    )
    return directory


def names(out, which: str) -> list[str]:
    return [name for _, name in read_sample_list(out / f"{which}.sample_list").samples()]


def test_inclusion_and_exclusion_lists_mean_the_same_samples(out, kinds):
    for prefix in ("", "train_", "validation_", "test_"):
        assert names(out, f"{prefix}inclusion") == names(out, f"{prefix}exclusion")
    assert [int(name) for name in names(out, "inclusion")] == kinds.rows.tolist()


def test_lists_of_splits_are_the_data_sets_splits(out, kinds):
    with open_shards(kinds.path) as ens:
        for split, indices in ens.splits.items():
            assert [int(name) for name in names(out, f"{split}_inclusion")] == ens.row[indices].tolist()


def test_trainers_get_disjoint_lists_of_equal_length_out_of_the_training_samples(out):
    lists = [set(names(out, f"t{k}_train_inclusion")) for k in range(3)]
    train = set(names(out, "train_inclusion"))
    assert len({len(one) for one in lists}) == 1 and len(lists[0]) == len(train) // 3
    assert len(set.union(*lists)) == 3 * len(lists[0]) and set.union(*lists) <= train


def test_failed_samples_are_in_their_bundle_without_success_and_excluded(out, kinds):
    failed = {f"{row:09d}" for row in np.setdiff1d(np.arange(60), kinds.rows) if row in failed_rows(kinds)}
    listed = read_sample_list(out / "exclusion.sample_list")
    excluded = {name for _, _, _, found in listed.lines for name in found}
    assert excluded == failed and len(failed) == len(BAD)
    with h5py.File(next(iter(out.glob("bundles/*/bundle_00000.h5")))) as file:
        first = sorted(failed)[0]
        assert int(file[first]["performance/success"][0]) == 0 and list(file[first]) == ["performance"]


def test_where_every_sample_failed_all_are_in_one_bundle_and_excluded(tmp_path):
    study = make_study(tmp_path / "ws", num=20)
    study.collect(0, 20, ok=np.zeros(20, bool))
    study.failures = {(0, task): "trouble" for task in range(20)}
    told = export(study.finish(), tmp_path / "out", ExportOptions(format="lbann"))
    assert told["num_samples"] == 0 and len(told["files"]) == 1
    listed = read_sample_list(tmp_path / "out" / "exclusion.sample_list")
    assert [name for _, _, _, found in listed.lines for name in found] == [f"{row:09d}" for row in range(20)]
    assert names(tmp_path / "out", "inclusion") == []
    with h5py.File(tmp_path / "out" / told["files"][0]["file"]) as file:
        assert len(file) == 20 and int(file["000000019/performance/success"][0]) == 0


def failed_rows(kinds) -> list[int]:
    with open_shards(kinds.path) as ens:
        return [row for source in ens.manifest.sources for a, b in source.failed for row in range(a, b)]


def test_every_field_is_normalised_and_packed_as_the_schemas_say(out, kinds):
    reader = Reader(out / "data_schema.yaml", out / "experiment_schema.yaml")
    assert {m["pack"] for m in reader.fields.values()} == {"datum", "response"}
    samples = list(read_sample_list(out / "inclusion.sample_list").samples())
    read = [reader.read(*sample) for sample in samples]
    statistics = {name: np.array(column) for name, column in kinds.values.items() if name not in ("note",)
                  and not name.startswith(("hits", "tags", "mesh", "inputs/material"))}  # fmt: skip
    for field, place in {
        "energy": "outputs/scalars/energy", "count": "outputs/scalars/count", "half": "outputs/scalars/half",
        "history": "outputs/series/history", "inputs/x": "inputs/x", "inputs/energy": "inputs/energy",
    }.items():  # fmt: skip
        values = statistics[field].astype(np.float64)
        low, high = values.min(), values.max()
        expected = (values - low) / (high - low)
        found = np.array([one[place] for one in read]).reshape(expected.shape)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=2e-3 if field == "half" else 2e-6)
    image = statistics["image"].astype(np.float64)
    expected = np.moveaxis(image / image.mean(axis=(0, 1, 2)), -1, 1)
    found = np.array([one["outputs/images/image"] for one in read]).reshape(expected.shape)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_tensors_are_channels_first_after_reading_whatever_their_layout(out, kinds):
    reader = Reader(out / "data_schema.yaml", out / "experiment_schema.yaml")
    one = reader.read(*next(iter(read_sample_list(out / "inclusion.sample_list").samples())))
    view = np.array(kinds.values["view"], np.float64)  # (n, c, h, w), with negative values
    low, high = view.min(axis=(0, 2, 3)), view.max(axis=(0, 2, 3))
    expected = (view[0] - low[:, None, None]) / (high - low)[:, None, None]
    np.testing.assert_allclose(one["outputs/images/view"].reshape(3, 4, 5), expected, atol=1e-6)
    volume = np.array(kinds.values["volume"], np.float64)  # (n, d, h, w, c)
    expected = np.moveaxis(volume[0] / volume.mean(axis=(0, 1, 2, 3)), -1, 0)
    np.testing.assert_allclose(one["outputs/volumes/volume"].reshape(2, 2, 3, 4), expected, rtol=1e-5)


def test_packs_are_inputs_first_and_hold_every_number(out):
    reader = Reader(out / "data_schema.yaml", out / "experiment_schema.yaml")
    packed = reader.packed(*next(iter(read_sample_list(out / "inclusion.sample_list").samples())))
    assert packed["datum"].shape == (3,)  # x, energy, LEVEL; the material is text
    assert packed["response"].shape == (4 + 9 + 60 + 60 + 48,)


def test_text_is_kept_as_conduit_has_it(out, kinds):
    path, name = next(iter(read_sample_list(out / "inclusion.sample_list").samples()))
    with h5py.File(path) as file:
        assert file[name]["outputs/text/note"][()].tobytes().rstrip(b"\0").decode() == kinds.values["note"][0]
        assert file[name]["inputs/material"][()].tobytes().rstrip(b"\0").decode() == "gold"


def test_lists_name_a_directory_that_is_no_text_by_its_bytes(kinds, tmp_path):
    odd = bytes(tmp_path) + b"/caf\xe9"
    export(kinds.path, Path(os.fsdecode(odd)), ExportOptions(format="lbann", fields=("energy",)))
    with open(odd + b"/inclusion.sample_list", "rb") as file:
        assert file.readlines()[2] == odd + b"/bundles/\n"


def test_a_split_alone_is_what_its_trainers_share(kinds, tmp_path):
    export(kinds.path, tmp_path, ExportOptions(format="lbann", fields=("energy",), split="train", trainers=2))
    first, second = (set(names(tmp_path, f"t{k}_inclusion")) for k in range(2))
    assert not first & second and len(first) == len(second)
    assert first | second <= set(names(tmp_path, "inclusion"))


def test_more_trainers_than_samples_are_refused(kinds, tmp_path):
    with pytest.raises(UsageError, match="--trainers 100 are more than the 4"):
        export(kinds.path, tmp_path, ExportOptions(format="lbann", fields=("energy",), trainers=100))


def test_a_path_with_blanks_cannot_be_in_a_list(kinds, tmp_path):
    with pytest.raises(UsageError, match="cannot hold a path with blanks"):
        export(kinds.path, tmp_path / "my data", ExportOptions(format="lbann", fields=("energy",)))
