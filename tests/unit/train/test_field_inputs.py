"""Models whose inputs are fields of the data set: images, series and numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from digit_data import digits, make_digit_data
from train_run import YAML, train_run

from merlin.errors import ConfigError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.train.config_file import load_config, parse_config
from merlin.train.lbann.emit import emit
from merlin.train.models.base import Shapes
from merlin.train.models.registry import build
from merlin.train.prepare import check, open_data, prepare
from merlin.train.results.evaluate import evaluate
from merlin.train.results.predict import predict_file
from merlin.train.results.report.page import write_report
from merlin.train.results.surrogate import ExtrapolationWarning, load_surrogate
from merlin.train.run_directory import RunDirectory
from merlin.train.widths import obstacle

EVERYTHING = "fields={inputs: [image, margins, brightness, noise], scalars: [label], images: []}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    schema = "inputs: [brightness, z]\nfields: {image: , label: , margins: , noise: , wide: {kind: image}}"
    random = np.random.default_rng(5)
    more = {
        "noise": random.normal(size=400),
        "z": random.random((400, 3)),
        "wide": random.random((400, 9, 10)),
    }
    return make_digit_data(tmp_path_factory.mktemp("digits"), 400, schema, **more)


def prepared(data: Path, directory: Path, *words: str):
    usual = ("model={name: regressor, width: 16, depth: 1}", "training.steps=8", "fields={}")
    text = YAML.format(data=data, directory=directory)
    return check(parse_config(text, "train.yaml", [*usual, *words]))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A regressor of an image, a series, a label of a sample and a scalar field."""
    methods = "normalise={inputs: standard, margins: log, noise: none}"
    return train_run(prepared(data, tmp_path_factory.mktemp("run") / "run", EVERYTHING, methods))[0]


def test_numbers_and_series_stand_side_by_side_and_images_have_entries_of_their_own(
    data: Path, run: RunDirectory
) -> None:
    opened = open_data(run, load_config(run.config_path).config)
    assert opened.shapes.inputs == (*(f"margins[{i}]" for i in range(9)), "brightness", "noise")
    assert opened.shapes.input_images == {"image": (1, 9, 9)} and not opened.shapes.images
    dataset = opened.dataset("train")
    batch = opened.shapes.with_channels(dataset[list(range(20))])
    ens, rows = open_shards(data), dataset.rows[:20]
    assert batch["inputs"].shape == (20, 11) and batch["image"].shape == (20, 1, 9, 9)
    logs = np.log10(ens["margins"][dataset.rows].astype(np.float64))  # one mean for all numbers of the series
    inputs = batch["inputs"].numpy()
    np.testing.assert_allclose(inputs[:, :9], (logs[:20] - logs.mean()) / logs.std(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(inputs[:, 10], ens["noise"][rows], rtol=1e-6)  # as it is
    image = ens["image"][rows].astype(np.float64)
    statistics = ens.fields["image"].statistics
    expected = (image - statistics.mean[0]) / statistics.std[0]
    np.testing.assert_allclose(batch["image"][:, 0].numpy(), expected, rtol=1e-4, atol=1e-5)
    assert batch["image"].dtype == torch.float32


def given_to(data: Path, num: int = 12) -> dict[str, np.ndarray]:
    ens = open_shards(data)
    fields = {name: ens[name][:num] for name in ("image", "margins", "noise", "label")}
    return {**fields, "brightness": ens.inputs["brightness"][:num]}


def test_a_surrogate_is_asked_in_physical_units(data: Path, run: RunDirectory) -> None:
    surrogate = load_surrogate(run.path, device="cpu")
    assert surrogate.input_images == {"image": (9, 9)} and surrogate.scalars == ("label",)
    given = given_to(data)
    found = surrogate.predict(given, batch_size=5)["label"]
    opened = open_data(run, load_config(run.config_path).config)
    batch = opened.shapes.with_channels(opened.dataset(None)[list(range(12))])
    with torch.no_grad():
        made = surrogate.best.trainee.predict(batch["inputs"], batch)["scalars"].numpy()
    np.testing.assert_allclose(found, opened.dataset(None).inverse("scalars", made)[:, 0], rtol=1e-4)
    one = surrogate.predict({**given, "image": given["image"][3]})
    assert one["label"].shape == (12,)  # a single image stands for all samples, as a single number does
    for wrong, words in (
        (
            {**given, "image": given["image"][:, :5]},
            r"'image' of shape \(12, 5, 9\): expected \(samples, 9, 9\)",
        ),
        ({**given, "image": given["image"][:5]}, "as many samples of each; found inputs 12, image 5"),
        ({**given, "image": np.full((12, 9, 9), np.nan)}, "row 0, 'image' has a value that is no finite"),
        ({k: v for k, v in given.items() if k != "image"}, "missing column image"),
        ({k: v for k, v in given.items() if k != "margins"}, r"missing columns margins\[0\]"),
        ({**given, "margins": np.ones((12, 10))}, "'margins' has 10 numbers per sample, the model's has 9"),
        (np.zeros((12, 11)), "the model sees images; give a mapping"),
    ):
        with pytest.raises(UsageError, match=words):
            surrogate.predict(wrong)
    assert surrogate.predict({name: values[:0] for name, values in given.items()})["label"].shape == (0,)
    with pytest.warns(ExtrapolationWarning, match="image in 12 "):
        surrogate.predict({**given, "image": given["image"] + 1000.0})


@pytest.mark.parametrize("suffix", ["npz", "h5", "parquet", "data set"])
def test_files_and_data_sets_with_the_same_fields_are_predicted(
    data: Path, run: RunDirectory, tmp_path: Path, suffix: str
) -> None:
    surrogate = load_surrogate(run.path, device="cpu")
    given = given_to(data, 400)
    match suffix:
        case "npz":
            samples = data.parent / "digits.npz"
        case "h5":
            samples = tmp_path / "samples.h5"
            import h5py

            with h5py.File(samples, "w") as file:
                for name, values in given.items():
                    file[f"fields/{name}"] = values
        case "parquet":
            import pyarrow as pa
            from pyarrow import parquet

            tensors = {n: pa.FixedShapeTensorArray.from_numpy_ndarray(given[n]) for n in ("image", "margins")}
            samples = tmp_path / "samples.parquet"
            parquet.write_table(pa.table({**given, **tensors}), samples)
        case _:
            samples = data
    done = predict_file(surrogate, samples, tmp_path / "out.npz", batch_size=64)
    found = np.load(tmp_path / "out.npz")
    assert done.num == 400 and done.inputs[-1] == "image"
    np.testing.assert_allclose(found["label"], surrogate.predict(given)["label"], rtol=1e-5)
    np.testing.assert_allclose(found["margins[3]"], given["margins"][:, 3])
    assert "image" not in found, "images are not repeated"


def test_columns_of_a_matrix_are_found_in_it(data: Path, tmp_path: Path) -> None:
    run = train_run(prepared(data, tmp_path / "run", "fields={inputs: [z2, z0], scalars: [noise]}"))[0]
    surrogate = load_surrogate(run.path, device="cpu")
    z = np.load(data.parent / "digits.npz")["z"]
    expected = surrogate.predict({"z0": z[:, 0], "z2": z[:, 2]})["noise"]
    np.testing.assert_array_equal(surrogate.predict({"z": z})["noise"], expected)
    predict_file(surrogate, data.parent / "digits.npz", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "z2,z0,noise" and len(lines) == 401
    z[7, 2] = np.inf
    np.savez(tmp_path / "bad.npz", z=z)
    with pytest.raises(UsageError, match="row 7, 'z', 'z2': inf is no finite number"):
        predict_file(surrogate, tmp_path / "bad.npz", tmp_path / "bad.csv")


def test_such_a_run_is_evaluated_reported_and_goes_on(data: Path, run: RunDirectory) -> None:
    evaluation = evaluate(run.path)
    assert set(evaluation.facts["scalars"]) == {"label"} and not evaluation.facts["images"]
    page = write_report(evaluation)[0].read_text()
    assert "predicts 1 scalar from 4 inputs" in page
    again = prepare(run.path, ["training.steps=10"])
    assert again.run is not None and again.facts.quantities.inputs[0].shape == (9, 9)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("fields={inputs: [imgae], scalars: [noise]}", "(?s)has no 'imgae'.*did you mean 'image'"),
        ("fields={inputs: [image], images: [image]}", "'image' is one of fields.inputs"),
        ("fields={inputs: [noise], scalars: [noise]}", "'noise' is one of fields.inputs"),
        ("fields={inputs: [image], classes: [label], scalars: [label]}", "'label' is one of fields.scalars"),
        ("fields={inputs: [image], classes: [noise]}", "classes are told by whole numbers"),
        ("fields={inputs: [image], classes: [lable]}", "has no 'lable'"),
    ],
)
def test_mistakes_in_the_choice_of_fields_are_findings(data: Path, tmp_path: Path, word, message) -> None:
    with pytest.raises(ConfigError, match=message):
        prepared(data, tmp_path / "run", word)


def test_what_is_given_is_not_predicted_unless_it_is_named(data: Path, tmp_path: Path) -> None:
    facts = prepared(data, tmp_path / "run", "fields.inputs=[image, noise]").facts
    assert facts.scalars == ("label",) and set(facts.images) == {"wide"} and facts.inputs == ("noise",)
    told = prepared(
        data, tmp_path / "run", "fields={inputs: [image], classes: [label]}", "model.name=classifier"
    )
    assert not told.facts.scalars and not told.facts.images
    assert told.facts.classes == {"label": tuple(range(10))}


def test_configurations_without_classes_are_what_they_were(data: Path, tmp_path: Path) -> None:
    config = prepared(data, tmp_path / "run", "fields.scalars=[noise]").config
    assert set(config.to_json()["fields"]) == {"inputs", "scalars", "images"}


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "fields={inputs: [image, wide], scalars: [noise]}",
            "images of one size.*9x9, 9x10; choose others in fields.inputs",
        ),
        ("fields={inputs: [image], classes: [label]}", "regressor predicts no classes"),
    ],
)
def test_models_say_what_they_cannot_take(data: Path, tmp_path: Path, word: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        prepared(data, tmp_path / "run", word)


def test_images_of_any_size_may_be_seen() -> None:
    def model(height: int, width: int, **options):
        shapes = Shapes.of((), ("y",), input_images={"a": (1, height, width), "b": (3, height, width)})
        return build("regressor", shapes, {"width": 8, "depth": 1, **options})

    for size in ((28, 28), (8, 13)):
        batch = {"a": torch.rand(5, 1, *size), "b": torch.rand(5, 3, *size), "scalars": torch.rand(5, 1)}
        assert model(*size).metrics(batch)["loss"].shape == (5,)
        assert model(*size, encoder="mlp")(batch)["loss"].shape == ()
    with pytest.raises(UsageError, match="at least 8x8, not 7x9; use encoder: mlp"):
        model(7, 9)
    assert obstacle(model(8, 8), model(8, 8, capacity=0.5)) is None, "its width may be mutated"


def test_a_model_without_images_has_the_weights_that_it_had() -> None:
    torch.manual_seed(3)
    found = build("regressor", Shapes.of(("a", "b"), ("y",)), {"width": 4, "depth": 1})
    assert list(found.state_dict()) == [
        "layers.0.weight",
        "layers.0.bias",
        "layers.2.weight",
        "layers.2.bias",
    ]
    torch.manual_seed(3)
    torch.testing.assert_close(found.layers[0].weight, torch.nn.Linear(2, 4).weight)


def test_lbann_takes_inputs_and_parameters_only(data: Path, run: RunDirectory, tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"fields\.inputs: only inputs and parameters .*image, margins, noise"
    ):
        emit(run.config_path, [f"directory={tmp_path / 'other'}"], tmp_path / "lbann")


def test_a_digit_tells_its_number() -> None:
    made = digits(50)
    assert made["image"].shape == (50, 9, 9) and set(made["label"]) == set(range(10))
