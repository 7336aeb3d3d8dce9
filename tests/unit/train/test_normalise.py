"""Normalisation: what the statistics say, and back again."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace
from train_study import FIELDS, IDS, inputs_of, make_data, track_of, values_of

import merlin
from merlin.errors import ShardError, UsageError
from merlin.shards.format.manifest_file import read_manifest
from merlin.shards.writing.growing import write_manifest_file
from merlin.train import Method, Normaliser, ShardDataset
from merlin.train.loading.scaling import Scaling

TRUTH = values_of(IDS)
NUMBERS = st.floats(-100, 100, allow_nan=False)


@pytest.fixture(scope="module")
def ens(data):
    with merlin.open_shards(data) as ensemble:
        yield ensemble


def scalings(channels: int = 1, axis: int | None = None) -> st.SearchStrategy[Scaling]:
    def vector(of):
        return st.lists(of, min_size=channels, max_size=channels).map(tuple)

    return st.builds(
        Scaling,
        centre=vector(NUMBERS),
        scale=vector(st.floats(0.01, 100)),
        offset=vector(st.none() | st.floats(101, 200)),  # so that every argument of a logarithm is positive
        floor=vector(st.just(1e-3)),
        axis=st.just(axis),
    )


VALUES = hnp.arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(1, 3), st.just(2)), elements=NUMBERS)


@given(scaling=scalings() | scalings(2, -1), x=VALUES)
def test_the_inverse_of_what_was_normalised_is_what_it_was(scaling, x):
    np.testing.assert_allclose(scaling.inverse(scaling.forward(x)), x, rtol=1e-7, atol=1e-7)


@given(scaling=scalings() | scalings(2, -1), x=VALUES, wide=st.booleans())
def test_arrays_in_place_and_tensors_agree(scaling, x, wide):
    expected = scaling.forward(x)
    np.testing.assert_allclose(scaling.forward(torch.from_numpy(x)).numpy(), expected, rtol=1e-9, atol=1e-12)
    out = x.copy() if wide else np.empty(x.shape, np.float32)
    scaling.apply(out if wide else x, out)
    np.testing.assert_allclose(out, expected, rtol=1e-9 if wide else 1e-5, atol=1e-9 if wide else 1e-3)


def test_both_directions_are_differentiable():
    scaling = Scaling((1.0, 0.0), (2.0, 3.0), (0.5, None), (0.1, 0.0), -1)
    x = torch.tensor([[0.3, 0.7], [5.0, -2.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(scaling.forward, (x,))
    assert torch.autograd.gradcheck(scaling.inverse, (x,))


def test_a_logarithm_has_finite_gradients_below_its_floor():
    x = torch.tensor([-5.0, 2.0], requires_grad=True)
    Scaling((0.0,), (1.0,), (0.0,), (1e-3,)).forward(x).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_standard_gives_mean_zero_and_deviation_one_for_each_channel(ens):
    normalised = ShardDataset(ens, ["image", "wide"], [], normalise="standard")[range(len(IDS))]
    for name, axes in (("image", (0, 1, 2)), ("wide", (0, 2, 3))):
        assert normalised[name].dtype == torch.float32
        values = normalised[name].double()
        torch.testing.assert_close(values.mean(axes), torch.zeros_like(values.mean(axes)), atol=1e-5, rtol=0)
        torch.testing.assert_close(
            values.std(axes, correction=0), torch.ones_like(values.mean(axes)), atol=1e-5, rtol=0
        )


def test_minmax_reaches_both_ends_of_the_range(ens):
    methods = {"inputs": "minmax", "gain": Method("minmax", (-1, 1)), "energy": {"name": "minmax"}}
    batch = ShardDataset(ens, ["gain", "energy"], normalise=methods)[range(len(IDS))]
    for values, low in ((batch["inputs"], 0), (batch["gain"], -1), (batch["energy"], 0)):
        assert values.amin(0).allclose(torch.tensor(float(low)), atol=1e-6)
        assert values.amax(0).allclose(torch.tensor(1.0), atol=1e-6)


def test_scale_divides_by_the_mean_and_leaves_zero(ens):
    batch = ShardDataset(ens, ["image"], [], normalise="scale")[range(len(IDS))]["image"]
    expected = TRUTH["image"] / TRUTH["image"].mean(axis=(0, 1, 2), dtype=np.float64)
    np.testing.assert_allclose(batch.numpy(), expected, rtol=1e-5)


def test_log_is_standardised_over_the_train_split(ens):
    batch = ShardDataset(ens, ["gain"], [], split="train", normalise="log")
    values = batch[range(len(batch))]["gain"].double()
    assert abs(values.mean()) < 1e-5
    assert abs(values.std(correction=0) - 1) < 1e-5
    truth = np.log10(TRUTH["gain"][ens.splits["train"]].astype(np.float64))
    np.testing.assert_allclose(values.numpy(), (truth - truth.mean()) / truth.std(), atol=1e-5)


def test_log_of_values_that_are_not_positive_is_lifted(ens):
    scaling = Normaliser.fit(ens, {"image": "log"}).scalings["fields/image"]
    low, high = TRUTH["image"].min(axis=(0, 1, 2)), TRUTH["image"].max(axis=(0, 1, 2))
    assert scaling.offset[1] == 0.0
    assert low[0] > 0 or scaling.offset[0] == pytest.approx(1e-6 * (high[0] - low[0]) - low[0])
    normalised = scaling.forward(TRUTH["image"].astype(np.float64))
    assert np.isfinite(normalised).all()
    np.testing.assert_allclose(scaling.inverse(normalised), TRUTH["image"], rtol=1e-9, atol=1e-6)


def test_an_offset_that_is_too_small_is_refused(ens):
    with pytest.raises(UsageError, match=r"'label' reaches down to 0: log needs an offset above 0"):
        Normaliser.fit(ens, {"label": Method("log", offset=-1)})


def test_statistics_may_be_those_of_a_split(ens):
    scaling = Normaliser.fit(ens, {"energy": "standard"}, over="train").scalings["fields/energy"]
    truth = TRUTH["energy"][ens.splits["train"]]
    assert scaling.centre[0] == pytest.approx(truth.mean())
    assert scaling.scale[0] == pytest.approx(1 / truth.std())
    with pytest.raises(UsageError, match=r"no split 'trian'.*train, validation, test"):
        Normaliser.fit(ens, {"energy": "standard"}, over="trian")


def test_ragged_fields_are_normalised_by_their_items(ens):
    items = np.concatenate([track_of(int(i)) for i in IDS])
    batch = ShardDataset(ens, ["track"], [], normalise="standard")[range(len(IDS))]
    np.testing.assert_allclose(
        batch["track"].numpy(), (items - items.mean(axis=0)) / items.std(axis=0), atol=1e-4
    )
    over_train = Normaliser.fit(ens, {"track": "standard"}, over="train").scalings["fields/track"]
    items = np.concatenate([track_of(int(i)) for i in IDS[ens.splits["train"]]])
    np.testing.assert_allclose(over_train.centre, items.mean(axis=0))


def test_a_name_overrules_its_group_and_none_excludes(ens):
    chosen = Normaliser.fit(
        ens, {"gain": None, "energy": "minmax", "scalars": "standard", "inputs": "standard"}
    )
    assert set(chosen.scalings) == {"fields/energy", "inputs/x", "inputs/y"}
    assert chosen.scalings["fields/energy"].centre == (TRUTH["energy"].min(),)
    everything = Normaliser.fit(ens, "standard").scalings
    assert "fields/label" not in everything, "an integer is not normalised unless it is named"
    assert "fields/mesh/edges" not in everything
    assert {"fields/history", "fields/mesh/nodes", "inputs/x"} <= set(everything)
    assert set(Normaliser.fit(ens, {"label": "standard"}).scalings) == {"fields/label"}


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("standart", "unknown normalisation 'standart'; known: standard, minmax, scale, log"),
        ({"enregy": "log"}, "no field, input or parameter 'enregy'.*energy"),
        ({"note": "standard"}, "'note' is text"),
        ({"mesh.edges": "standard"}, "numbers of nodes"),
        ({"energy": {"name": "minmax", "range": [1, 1]}}, "both ends of the range are 1"),
        ({"energy": Method("minmax", (1, 1))}, "both ends of the range are 1"),
        ({"energy": {"name": "minmax", "range": [0]}}, "range must be 2 finite numbers"),
        ({"energy": {"name": "minmax", "range": [0, math.inf]}}, "range must be 2 finite numbers"),
        ({"energy": {"name": "log", "offset": "abc"}}, "offset must be a finite number"),
        ({"energy": {"name": "log", "ofset": 1}}, "unknown ofset"),
    ],
)
def test_what_makes_no_sense_is_refused(ens, methods, message):
    with pytest.raises(UsageError, match=message):
        Normaliser.fit(ens, methods)


def test_a_constant_field_is_named(tmp_path):
    def outputs(ids):
        values = values_of(ids)
        values["energy"][:] = 3.0
        values["image"][..., 1] = 7
        return values

    with merlin.open_shards(make_data(tmp_path / "w", fields=FIELDS, outputs=outputs)) as ens:
        with pytest.raises(UsageError, match=r"'energy' is constant \(3\).*\"energy\": None"):
            Normaliser.fit(ens, {"energy": "standard"})
        with pytest.raises(UsageError, match=r"'image' is constant \(channel 1 is 7\)"):
            Normaliser.fit(ens, {"image": "minmax"})
        with pytest.raises(UsageError, match="'energy' is constant"):
            ShardDataset(ens, normalise="standard")
        some = ShardDataset(ens, ["gain", "history"], ["x"], normalise="standard")  # it does not matter here
        assert set(some.normaliser.scalings) == {"fields/gain", "fields/history", "inputs/x"}
        with pytest.raises(UsageError, match="'energy' is constant"):
            ShardDataset(ens, ["gain"], normalise={"fields": "standard", "energy": "log"})


def test_a_field_without_finite_values_is_named(tmp_path):
    def outputs(ids):
        return {**values_of(ids), "energy": np.full(len(ids), np.nan)}

    fields = (FIELDS[0].__class__(name="energy", finite=False), *FIELDS[1:])
    with merlin.open_shards(make_data(tmp_path / "w", fields=fields, outputs=outputs)) as ens:
        with pytest.raises(UsageError, match="'energy' has no finite values to normalise"):
            Normaliser.fit(ens, {"energy": "standard"})
        with pytest.raises(UsageError, match="'energy' has no finite values in split 'train'"):
            Normaliser.fit(ens, {"energy": "standard"}, over="train")


PARAMS = ({"GAIN": 0.5, "ORDER": 1}, {"GAIN": 100.5, "ORDER": 3})


def test_parameters_are_normalised_with_the_inputs_integers_too(tmp_path):
    data = make_data(tmp_path / "w", fields=FIELDS[:1], outputs=values_of, params=PARAMS)
    dataset = ShardDataset(data, normalise={"inputs": "minmax"})
    assert dataset.input_names == ("x", "y", "GAIN", "ORDER")
    seen = dataset[range(len(dataset))]["inputs"]
    assert torch.equal(seen.amin(dim=0), torch.zeros(4)) and torch.equal(seen.amax(dim=0), torch.ones(4))
    assert torch.equal(seen[:, 2], seen[:, 3])


def test_a_data_set_whose_parameters_have_no_statistics_gets_them_over_a_split(tmp_path):
    data = make_data(tmp_path / "w", fields=FIELDS[:1], outputs=values_of, params=PARAMS)
    manifest = read_manifest(data)
    columns = tuple(replace(column, statistics=None) for column in manifest.columns)
    write_manifest_file(data, replace(manifest, columns=columns))
    with merlin.open_shards(data) as ens:
        with pytest.raises(UsageError, match=r"no statistics of 'GAIN'.*over=\"train\""):
            Normaliser.fit(ens, {"GAIN": "minmax"})
        fitted = Normaliser.fit(ens, {"GAIN": "minmax"}, over="train")
        assert fitted.scalings["parameters/GAIN"].scale == (0.01,)


def test_complex_numbers_are_not_normalised(tmp_path):
    def outputs(ids):
        return {"energy": ids + 1.0, "wave": ids + 1j}

    fields = (FIELDS[0], FIELDS[0].__class__(name="wave", dtype="complex128"))
    with (
        merlin.open_shards(make_data(tmp_path / "w", fields=fields, outputs=outputs)) as ens,
        pytest.raises(UsageError, match="'wave' holds complex numbers"),
    ):
        Normaliser.fit(ens, {"wave": "standard"}, over="train")


def test_a_normaliser_survives_json(ens, tmp_path):
    fitted = Normaliser.fit(ens, {"inputs": "minmax", "image": "log", "energy": "standard"})
    assert Normaliser.from_json(json.loads(json.dumps(fitted.to_json()))) == fitted
    fitted.save(tmp_path / "n.json")
    assert Normaliser.load(tmp_path / "n.json") == fitted
    (tmp_path / "n.json").write_text("{}")
    with pytest.raises(ShardError, match="not a readable normalisation"):
        Normaliser.load(tmp_path / "n.json")


def test_what_was_computed_is_kept_beside_the_run_and_never_in_the_data_set(ens, tmp_path):
    cache = tmp_path / "moments.json"

    def fit():
        return Normaliser.fit(ens, {"image": "log"}, cache=cache)

    first = fit()
    assert fit() == first
    kept = json.loads(cache.read_text())
    (computed,) = kept["statistics"].values()
    computed["mean"] = [0.5] * len(computed["mean"])
    cache.write_text(json.dumps(kept))
    assert fit().scalings["fields/image"].centre == tuple(computed["mean"]), (
        "what is kept is not computed again"
    )
    cache.write_text("damaged")
    assert fit() == first
    with pytest.raises(UsageError, match="inside the data set"):
        Normaliser.fit(ens, {"image": "log"}, cache=ens.path / "moments.json")


def test_selections_have_statistics_of_their_own(ens, tmp_path):
    cache = tmp_path / "moments.json"
    some = ens.take(np.arange(20))
    of_all = Normaliser.fit(ens, {"energy": "standard"}, over="train", cache=cache)
    of_some = Normaliser.fit(some, {"energy": "standard"}, over="train", cache=cache)
    assert of_all != of_some
    assert of_some.scalings["fields/energy"].centre[0] == pytest.approx(
        TRUTH["energy"][:20][some.splits["train"]].mean()
    )


def test_predictions_come_back_in_the_data_sets_units(ens):
    dataset = ShardDataset(
        ens,
        ["energy", "gain", "label", "image"],
        stack_scalars=True,
        layout="chw",
        normalise={"inputs": "minmax", "gain": "log", "energy": "standard", "image": "standard"},
    )
    batch = dataset[[3, 1, 2]]
    ids = IDS[[3, 1, 2]]
    truth = values_of(ids)
    expected = np.stack([truth["energy"], truth["gain"], truth["label"]], axis=1)
    np.testing.assert_allclose(dataset.inverse("scalars", batch["scalars"]).numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(
        dataset.inverse("scalars", batch["scalars"][1]).numpy(), expected[1], rtol=1e-5
    )
    np.testing.assert_allclose(dataset.inverse("inputs", batch["inputs"].numpy()), inputs_of(ids), atol=1e-4)
    image = dataset.inverse("image", batch["image"])
    np.testing.assert_allclose(image.numpy(), truth["image"].transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-2)
    with pytest.raises(KeyError, match=r"no 'imgae' of values in a batch"):
        dataset.inverse("imgae", image)


def test_a_large_mean_does_not_swallow_a_small_spread(ens):
    """Wide values are centred before they become float32."""
    dataset = ShardDataset(ens, ["energy"], stack_scalars=True, normalise="standard")
    truth = TRUTH["energy"]
    np.testing.assert_allclose(
        dataset[range(len(IDS))]["scalars"][:, 0].numpy(), (truth - truth.mean()) / truth.std(), atol=1e-6
    )
    assert math.isclose(truth.mean(), 1e6, rel_tol=1e-3)
