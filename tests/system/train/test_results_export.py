"""Exported models give what the model gives, with nothing of Merlin or PyTorch's modules beside them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from digit_data import digits, make_digit_data
from train_run import YAML, train_run
from trained import make_trained

from merlin.errors import TrainingError
from merlin.train.config_file import parse_config
from merlin.train.prepare import check
from merlin.train.results.export import export_model, model_facts
from merlin.train.results.surrogate import Surrogate, load_surrogate


@pytest.fixture(scope="module")
def surrogate(tmp_path_factory: pytest.TempPathFactory) -> Surrogate:
    mixed = "normalise={inputs: log, energy: log, radius: none, image: {name: log, offset: 0.001}}"
    model = "model={name: regressor, width: 8, kind: cnn}"
    return load_surrogate(make_trained(tmp_path_factory.mktemp("run"), mixed, model).path, device="cpu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_digit_data(tmp_path_factory.mktemp("digits"), 400)


def trained_on(pictures: Path, directory: Path, *words: str) -> Surrogate:
    """A model that sees images, after a few steps."""
    text = YAML.format(data=pictures, directory=directory)
    config = parse_config(text, "train.yaml", ["fields={}", "training.steps=8", *words])
    return load_surrogate(train_run(check(config))[0].path, device="cpu")


@pytest.fixture(scope="module")
def classifier(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Surrogate:
    model = "model={name: classifier, width: 64, depth: 1}"
    fields = "fields={inputs: [image], classes: [label]}"
    return trained_on(pictures, tmp_path_factory.mktemp("classifier") / "run", model, fields)


@pytest.fixture(scope="module")
def regressor(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Surrogate:
    """It sees an image, a series and a number."""
    model = "model={name: regressor, width: 16, depth: 1}"
    fields = "fields={inputs: [image, margins, brightness], scalars: [label], images: []}"
    words = (model, fields, "normalise={inputs: standard, margins: log}")
    return trained_on(pictures, tmp_path_factory.mktemp("regressor") / "run", *words)


def inputs(surrogate: Surrogate, num: int) -> np.ndarray:
    low, high = np.array(list(surrogate.ranges.values())).T
    return low + (high - low) * np.random.default_rng(3).random((num, len(low)))


def require_equal(found: dict[str, np.ndarray], surrogate: Surrogate, x: np.ndarray) -> None:
    for name, values in surrogate.predict(x).items():
        assert found[name].dtype == values.dtype and found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5 * np.abs(values).max())


def test_onnx_runtime_predicts_as_the_model_does(surrogate: Surrogate, tmp_path: Path) -> None:
    path = export_model(surrogate, "onnx", tmp_path / "model.onnx")
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"], "weights are inside of the file"
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    assert names == ["energy", "radius", "time", "image"]
    for num in (1, 4, 33):
        x = inputs(surrogate, num)
        found = session.run(None, {"inputs": x})
        require_equal(dict(zip(names, found, strict=True)), surrogate, x)
    (told,) = (json.loads(p.value) for p in onnx.load(path).metadata_props if p.key == "merlin")
    assert [column["name"] for column in told["inputs"]] == list(surrogate.inputs)
    assert told["outputs"][3]["shape"] == [8, 8, 2]


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript_predicts_as_the_model_does(surrogate: Surrogate, tmp_path: Path) -> None:
    path = export_model(surrogate, "torchscript", tmp_path / "model.pt")
    extra = {"merlin.json": ""}
    loaded = torch.jit.load(str(path), _extra_files=extra)
    for num in (1, 33):
        x = inputs(surrogate, num)
        require_equal({k: v.numpy() for k, v in loaded(torch.from_numpy(x)).items()}, surrogate, x)
    assert json.loads(extra["merlin.json"])["model"] == "regressor"


def test_a_model_that_an_export_would_change_is_not_written(surrogate: Surrogate, tmp_path: Path) -> None:
    class Moody(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"scalars": x[:, :3] * (2 if len(x) > 4 else 1), "image": x.new_zeros(len(x), 2, 8, 8)}

    kept = surrogate.model.trainee
    moody = Moody()
    moody.predict = moody.forward
    surrogate.model.trainee = moody
    try:
        with pytest.raises(TrainingError, match=r"predicts another|cannot be exported"):
            export_model(surrogate, "torchscript", tmp_path / "model.pt")
    finally:
        surrogate.model.trainee = kept
    assert not list(tmp_path.iterdir())


def outputs(path: Path, format: str, given: dict[str, np.ndarray], *names: str) -> list[np.ndarray]:
    """What an exported model computes from the values of its inputs, which stand in their order."""
    if format == "onnx":
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        assert [put.name for put in session.get_inputs()] == list(given)
        return session.run(names, given)
    found = torch.jit.load(str(path))(*(torch.from_numpy(values.copy()) for values in given.values()))
    return [found[name].numpy() for name in names]


both_formats = pytest.mark.parametrize("format", ["onnx", "torchscript"])
no_warnings_of_jit = pytest.mark.filterwarnings(
    "ignore:.*torch.jit:DeprecationWarning", "ignore::torch.jit.TracerWarning"
)


@both_formats
@no_warnings_of_jit
def test_an_exported_classifier_takes_the_image_alone(
    classifier: Surrogate, tmp_path: Path, format: str
) -> None:
    path = export_model(classifier, format, tmp_path / "model")
    image = digits(7, seed=2)["image"].astype(np.float32)
    label, probabilities = outputs(path, format, {"image": image}, "label", "label.probabilities")
    expected = classifier.predict({"image": image})
    np.testing.assert_array_equal(label, expected["label"])
    np.testing.assert_allclose(probabilities, expected["label.probabilities"], rtol=1e-3, atol=1e-5)
    told = model_facts(classifier)
    assert told["inputs"][0]["shape"] == [9, 9] and told["outputs"][0]["classes"] == list(range(10))


@both_formats
@no_warnings_of_jit
def test_exported_models_take_images_beside_their_columns(
    regressor: Surrogate, tmp_path: Path, format: str
) -> None:
    path = export_model(regressor, format, tmp_path / "model")
    given = digits(7, seed=2)
    del given["label"]
    columns, image = regressor.arrays(given)
    (found,) = outputs(path, format, {"inputs": columns, "image": image}, "label")
    np.testing.assert_allclose(found, regressor.predict(given)["label"], rtol=1e-4)
