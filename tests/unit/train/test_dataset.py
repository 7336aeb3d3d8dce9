"""The data set as torch sees it: every tensor tells its samples."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, Subset
from train_study import FIELDS, IDS, inputs_of, make_data, mesh_of, track_of, values_of

import merlin
from merlin.errors import NotADataSetError, UsageError
from merlin.plan.plan import PlannedField
from merlin.shards.writing.outputs import item_rows
from merlin.train import Partition, ShardDataset

NUM = len(IDS)


@pytest.fixture(scope="module")
def ens(data):
    with merlin.open_shards(data) as ensemble:
        yield ensemble


def check(batch: Mapping[str, torch.Tensor], ids: np.ndarray) -> None:
    """A batch has what samples `ids` have, in their order."""
    truth = values_of(ids)
    for name in ("energy", "gain", "label", "history", "image", "wide"):
        np.testing.assert_array_equal(batch[name].numpy(), truth[name], strict=True)
    assert batch["inputs"].dtype == torch.float32
    np.testing.assert_array_equal(batch["inputs"].numpy(), inputs_of(ids))
    tracks, meshes = [track_of(int(i)) for i in ids], [mesh_of(int(i)) for i in ids]
    np.testing.assert_array_equal(batch["track"].numpy(), joined(tracks, (0, 3)))
    np.testing.assert_array_equal(batch["track.offsets"].numpy(), begins(tracks))
    ptr = begins([mesh["nodes"] for mesh in meshes])
    np.testing.assert_array_equal(batch["mesh.ptr"].numpy(), ptr)
    np.testing.assert_array_equal(batch["mesh.edge_ptr"].numpy(), begins([mesh["edges"] for mesh in meshes]))
    np.testing.assert_array_equal(batch["mesh.nodes"].numpy(), joined([m["nodes"] for m in meshes], (0, 2)))
    edges = [mesh["edges"] + first for mesh, first in zip(meshes, ptr, strict=False)]
    np.testing.assert_array_equal(batch["mesh.edges"].numpy(), joined(edges, (0, 2)))
    np.testing.assert_array_equal(batch["mesh.targets"].numpy(), ids[:, None])


def joined(parts: list[np.ndarray], empty: tuple[int, int]) -> np.ndarray:
    return np.concatenate(parts) if parts else np.zeros(empty)


def begins(parts: list[np.ndarray]) -> np.ndarray:
    return np.cumsum([0, *map(len, parts)])


@settings(deadline=None)
@given(indices=st.lists(st.integers(-NUM, NUM - 1), max_size=30))
def test_a_batch_has_the_samples_asked_for_in_their_order(ens, indices):
    check(ShardDataset(ens)[indices], IDS[np.array(indices, dtype=np.int64)])


def test_one_sample_is_a_batch_without_its_first_axis(ens):
    dataset = ShardDataset(ens, stack_scalars=True)
    one, batch = dataset[-3], dataset[[NUM - 3]]
    assert set(one) == set(dataset.keys) - {"track.offsets", "mesh.ptr", "mesh.edge_ptr"}
    for key, values in one.items():
        varies = key in ("track", "mesh.nodes", "mesh.edges")
        assert torch.equal(values, batch[key] if varies else batch[key][0])


def test_all_types_of_an_index_mean_the_same(ens):
    dataset = ShardDataset(ens, ["image"])
    for indices in ([3, 1], (3, 1), np.array([3, 1], np.int32), torch.tensor([3, 1])):
        assert torch.equal(dataset[indices]["image"], dataset[[3, 1]]["image"])
    for index in (3, np.int64(3), torch.tensor(3), 3 - NUM):
        assert torch.equal(dataset[index]["image"], dataset[3]["image"])


def test_masks_and_slices_choose_samples(ens):
    dataset = ShardDataset(ens, ["label"], split="train")
    mask = np.arange(len(dataset)) % 3 == 1
    expected = dataset[np.flatnonzero(mask)]["label"]
    for index in (mask, mask.tolist(), torch.from_numpy(mask), slice(1, None, 3)):
        assert torch.equal(dataset[index]["label"], expected)
    assert torch.equal(dataset[-2:]["label"], dataset[[-2, -1]]["label"])


@pytest.mark.parametrize("index", [NUM, -NUM - 1, [0, NUM]])
def test_a_sample_that_is_not_there_is_an_error(ens, index):
    with pytest.raises(IndexError, match=f"outside the data set of {NUM} samples"):
        ShardDataset(ens)[index]


@pytest.mark.parametrize(
    "index", [2.7, True, None, "2", [2.7, 1.0], [[0, 1]], [True, False], torch.tensor([0.5])], ids=repr
)
def test_what_names_no_sample_is_an_error_that_says_what_does(ens, index):
    with pytest.raises(IndexError, match=r"integers|a mask needs shape"):
        ShardDataset(ens)[index]


def test_scalars_are_stacked_in_the_order_asked_for(ens):
    dataset = ShardDataset(ens, ["gain", "image", "energy"], ["y"], stack_scalars=True)
    assert dataset.keys == ("inputs", "scalars", "image")
    assert dataset.input_names == ("y",)
    assert dataset.scalar_names == ("gain", "energy")
    truth = values_of(IDS[[5, 2]])
    batch = dataset[[5, 2]]
    np.testing.assert_array_equal(
        batch["scalars"].numpy(), np.stack([truth["gain"], truth["energy"]], axis=1).astype(np.float32)
    )
    np.testing.assert_array_equal(batch["inputs"].numpy(), inputs_of(IDS[[5, 2]])[:, 1:])


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_what_is_not_kept_in_memory_is_read_each_time(ens, cache_bytes):
    dataset = ShardDataset(
        ens, stack_scalars=True, normalise="minmax", split="train", cache_bytes=cache_bytes
    )
    usual = ShardDataset(ens, stack_scalars=True, normalise="minmax", split="train")
    for key in ("inputs", "scalars"):
        assert torch.equal(dataset[[4, 0]][key], usual[[4, 0]][key])


@pytest.mark.parametrize("layout", ["chw", "hwc"])
def test_channels_are_where_the_layout_says_without_a_copy(ens, layout):
    stored, batch = ShardDataset(ens)[[1, 2]], ShardDataset(ens, layout=layout)[[1, 2]]
    first = layout == "chw"
    torch.testing.assert_close(
        batch["image"], stored["image"].permute(0, 3, 1, 2) if first else stored["image"]
    )
    torch.testing.assert_close(batch["wide"], stored["wide"] if first else stored["wide"].permute(0, 2, 3, 1))
    assert batch["history"].shape == (2, 4)
    if first:
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)


def test_floats_become_float32_when_asked(ens):
    batch = ShardDataset(ens, dtype="float32")[[1]]
    assert {key: values.dtype for key, values in batch.items() if not values.is_floating_point()} == {
        key: batch[key].dtype for key in ("label", "track.offsets", "mesh.edges", "mesh.ptr", "mesh.edge_ptr")
    }
    assert all(values.dtype == torch.float32 for values in batch.values() if values.is_floating_point())


def test_splits_and_partitions_cover_the_data_set_once(ens):
    seen: list[int] = []
    for split in ens.splits:
        for k in range(3):
            dataset = ShardDataset(ens, split=split, partition=(k, 3))
            assert dataset.rows.tolist() == sorted(dataset.rows.tolist())
            np.testing.assert_array_equal(dataset[range(len(dataset))]["label"], IDS[dataset.rows] % 7)
            seen += dataset.rows.tolist()
    assert sorted(seen) == list(range(NUM))


def test_a_share_is_divided_into_training_and_tournament(ens):
    def rows(part):
        share = Partition(1, 2, seed=3, part=part, tournament_fraction=0.3)
        return ShardDataset(ens, split="train", partition=share).rows.tolist()

    assert sorted(rows("train") + rows("tournament")) == rows("all")
    assert rows("tournament")


def test_parameters_of_the_study_are_inputs(tmp_path):
    directory = make_data(tmp_path / "w", params=({"P": 1, "MATERIAL": "gold"}, {"P": 2, "MATERIAL": "iron"}))
    dataset = ShardDataset(directory, ["energy"])
    assert dataset.input_names == ("x", "y", "P")
    assert dataset[[0, NUM]]["inputs"][:, 2].tolist() == [1, 2]
    with pytest.raises(UsageError, match="'MATERIAL' is text"):
        ShardDataset(directory, inputs=["MATERIAL"])


def test_a_selection_is_a_data_set(ens):
    some = ens.take(np.arange(10, 40))
    dataset = ShardDataset(some)
    check(dataset[[3, 0]], IDS[[13, 10]])
    train = ShardDataset(some, split="train")
    assert set(some.positions[train.rows].tolist()) == set(range(10, 40)) & set(ens.splits["train"].tolist())
    assert dataset.fingerprint != ShardDataset(ens).fingerprint


def test_fingerprints_tell_samples_apart(ens, data):
    def all_of(**more):
        return ShardDataset(ens, **more).fingerprint

    prints = [all_of(), all_of(split="train"), all_of(partition=(0, 2)), all_of(partition=(1, 2))]
    assert len(set(prints)) == 4
    assert all_of(partition=[0, 2]) == prints[2]
    assert ShardDataset(data, ["image"], split="train", normalise="standard").fingerprint == prints[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": ["imgae"]}, r"no field 'imgae'.*image"),
        ({"inputs": ["z"]}, r"no input or parameter 'z'.*x, y"),
        ({"fields": ["note"]}, "'note' is text"),
        ({"split": "trian"}, r"no split 'trian'.*train, validation, test"),
        ({"layout": "cwh"}, "chw or hwc"),
        ({"fields": [], "inputs": []}, "nothing of .* is left"),
        ({"partition": [0.5, 2]}, r"partition is \(k, K\).*not \[0.5, 2\]"),
        ({"partition": 0}, r"partition is \(k, K\)"),
        ({"fields": ["image", "image"]}, "two parts of a batch would be called 'image'"),
        ({"fields": ["mesh.edges"]}, "edges of 'mesh' count nodes"),
        (
            {"stack_scalars": ["energy", "image"]},
            "no scalar 'image' among the fields chosen; there are: energy",
        ),
        ({"fields": ["image"], "stack_scalars": ["energy"]}, "no scalar 'energy' .*there are: none"),
    ],
)
def test_what_makes_no_sense_is_refused(ens, arguments, message):
    with pytest.raises(UsageError, match=message):
        ShardDataset(ens, **arguments)


def test_a_directory_without_a_data_set_is_refused(tmp_path):
    with pytest.raises(NotADataSetError):
        ShardDataset(tmp_path)


def test_a_graphs_name_stands_for_its_members(ens):
    assert ShardDataset(ens, ["mesh"], []).keys == (
        "mesh.nodes", "mesh.edges", "mesh.targets", "mesh.ptr", "mesh.edge_ptr",
    )  # fmt: skip
    assert ShardDataset(ens, ["mesh.edges", "mesh.nodes"], []).keys[0] == "mesh.edges"


def test_a_data_set_survives_pickling(ens):
    dataset = ShardDataset(ens, split="train", stack_scalars=True, normalise="standard", layout="chw")
    before = dataset[[2, 1]]
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(copy) == len(dataset)
    assert copy.fingerprint == dataset.fingerprint
    assert len(pickle.dumps(dataset)) < 200_000
    for key, values in copy[[2, 1]].items():
        assert torch.equal(values, before[key])


@pytest.mark.parametrize("compression", ["zstd", "blosc2"])
def test_compressed_data_is_the_same(tmp_path, compression):
    dataset = ShardDataset(make_data(tmp_path / "w", compression=compression))
    check(dataset[[40, 3, 3]], IDS[[40, 3, 3]])


# with torch's own loader


def test_torchs_loader_gets_whole_batches_with_its_defaults(ens):
    seen = []
    for batch in DataLoader(ShardDataset(ens), batch_size=8, shuffle=True):
        assert type(batch) is dict
        ids = (batch["inputs"][:, 0] / 2).to(torch.int64).numpy()
        check(batch, ids)
        seen += ids.tolist()
    assert sorted(seen) == IDS.tolist()


def test_torchs_loader_may_hand_over_arrays_of_indices(ens):
    dataset = ShardDataset(ens)
    sampler = BatchSampler(SequentialSampler(dataset), 10, drop_last=False)
    for loader in (
        DataLoader(dataset, batch_size=None, sampler=sampler),
        DataLoader(dataset, batch_sampler=sampler),
    ):
        ids = np.concatenate([(batch["inputs"][:, 0] / 2).numpy() for batch in loader])
        np.testing.assert_array_equal(ids, IDS)


def test_torchs_subsets_work(ens):
    subset = Subset(ShardDataset(ens, ["image"]), [5, 7, 9])
    (batch,) = DataLoader(subset, batch_size=3)
    np.testing.assert_array_equal(batch["image"].numpy(), values_of(IDS[[5, 7, 9]])["image"])


def test_fields_that_are_called_alike_are_told_apart(tmp_path):
    """The file's own name for a field may be what a batch calls its inputs."""
    fields = (FIELDS[1].__class__(name="inputs", kind="series", shape=(2,)), *FIELDS)

    def outputs(ids):
        return {**values_of(ids), "inputs": inputs_of(ids)}

    directory = make_data(tmp_path / "w", fields=fields, outputs=outputs)
    with pytest.raises(UsageError, match="two parts of a batch would be called 'inputs'"):
        ShardDataset(directory)
    assert ShardDataset(directory, ["inputs"], [])[0]["inputs"].tolist() == [2.0, 3.0]


def test_a_random_sampler_covers_everything(ens):
    dataset = ShardDataset(ens, ["label"])
    batches = BatchSampler(RandomSampler(dataset), 7, drop_last=False)
    assert sum(len(batch["label"]) for batch in DataLoader(dataset, batch_sampler=batches)) == NUM


def test_complex_scalars_are_not_stacked(tmp_path):
    def outputs(ids):
        return {"energy": ids + 1.0, "wave": ids + 1j}

    fields = (FIELDS[0], FIELDS[0].__class__(name="wave", dtype="complex128"))
    dataset = ShardDataset(make_data(tmp_path / "w", fields=fields, outputs=outputs), stack_scalars=True)
    assert dataset.scalar_names == ("energy",)
    batch = dataset[[3, 1]]
    np.testing.assert_array_equal(batch["wave"].numpy(), IDS[[3, 1]] + 1j)
    np.testing.assert_array_equal(batch["scalars"].numpy(), IDS[[3, 1], None] + 1.0)


def test_fields_of_any_number_of_numbers_are_not_stacked(tmp_path):
    def outputs(ids):
        return {"energy": ids + 1.0, "hits": item_rows([np.full(i % 3, float(i)) for i in ids], len(ids))}

    fields = (FIELDS[0], PlannedField(name="hits", ragged=True))
    data = make_data(tmp_path / "w", fields=fields, outputs=outputs)
    batch = ShardDataset(data, stack_scalars=True)[[3, 1]]
    assert (batch["scalars"].shape, batch["hits.offsets"].tolist()) == ((2, 1), [0, 1, 3])
    assert batch["hits"].tolist() == [4.0, 2.0, 2.0]
    with pytest.raises(UsageError, match="no scalar 'hits' among the fields chosen; there are: energy"):
        ShardDataset(data, stack_scalars=["hits"])
