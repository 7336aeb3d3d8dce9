"""A classifier of digits, from training to other programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from digit_data import digits, make_digit_data
from train_run import YAML, train_run

import merlin
from merlin.errors import ConfigError, UsageError
from merlin.shards.ensemble import open_shards
from merlin.train.config_file import parse_config
from merlin.train.data import class_values
from merlin.train.loading.columns import Columns
from merlin.train.models.base import Shapes
from merlin.train.models.registry import build
from merlin.train.prepare import check
from merlin.train.results.evaluate import evaluate
from merlin.train.results.predict import predict_file
from merlin.train.results.report.page import write_report
from merlin.train.results.scores import ClassScores
from merlin.train.results.surrogate import Surrogate
from merlin.train.run_directory import RunDirectory

WORDS = (
    "model={name: classifier, width: 64, depth: 1}", "fields={inputs: [image], classes: [label]}",
    "training.steps=80", "training.validate_every=40", "optimizer.lr=0.01",
)  # fmt: skip


def prepared(data: Path, directory: Path, *words: str):
    return check(parse_config(YAML.format(data=data, directory=directory), "train.yaml", [*WORDS, *words]))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return make_digit_data(tmp_path_factory.mktemp("digits"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return train_run(prepared(data, tmp_path_factory.mktemp("run") / "run"))[0]


@pytest.fixture(scope="module")
def surrogate(run: RunDirectory) -> Surrogate:
    return merlin.load_surrogate(run.path, device="cpu")


def test_it_learns_to_tell_digits_and_the_report_says_how_well(run: RunDirectory) -> None:
    evaluation = evaluate(run.path)
    write_report(evaluation)
    facts = json.loads((run.path / "evaluation.json").read_text())
    found = facts["classes"]["label"]
    assert found["accuracy"] > 0.95 and found["most_frequent"] < 0.3
    assert found["accuracy"] == pytest.approx(facts["metrics"]["accuracy"])
    assert found["cross_entropy"] == pytest.approx(facts["metrics"]["loss"], rel=1e-4)
    assert sum(of["num_samples"] for of in found["classes"]) == facts["num_samples"]
    assert not facts["scalars"] and not facts["images"]
    page = (run.path / "report.html").read_text()
    assert "accuracy of label" in page and "The model predicts the classes of label from 1 input" in page


def test_it_answers_with_a_class_and_the_probability_of_each(surrogate: Surrogate) -> None:
    made = digits(50, seed=9)
    found = surrogate.predict({"image": made["image"]})
    assert surrogate.classes == {"label": tuple(range(10))} and not surrogate.inputs and not surrogate.scalars
    assert found["label"].dtype == np.int64 and (found["label"] == made["label"]).mean() > 0.9
    probabilities = found["label.probabilities"]
    assert probabilities.shape == (50, 10) and probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), found["label"])
    assert repr(surrogate) == "Surrogate(classifier: image (9, 9) -> label)"


@pytest.mark.parametrize("suffix", [".npz", ".csv", ".parquet", ".h5"])
def test_predictions_of_classes_are_written_as_whole_numbers(
    surrogate: Surrogate, tmp_path: Path, suffix: str
) -> None:
    made = digits(30, seed=4)
    np.save(tmp_path / "images.npy", made["image"])  # the only input: nothing needs a name
    out = tmp_path / f"out{suffix}"
    done = predict_file(surrogate, tmp_path / "images.npy", out)
    expected = surrogate.predict({"image": made["image"]})["label"]
    match suffix:
        case ".npz":
            assert np.load(out)["label.probabilities"].shape == (30, 10)
            found = np.load(out)["label"]
        case ".csv":
            assert any("no place for label.probabilities" in note for note in done.notes)
            found = pd.read_csv(out)["label"].to_numpy()
        case ".parquet":
            found = pd.read_parquet(out, columns=["label"])["label"].to_numpy()
        case _:
            import h5py

            with h5py.File(out) as file:
                found = file["label"][:]
    assert found.dtype == np.int64 and done.num == 30
    np.testing.assert_array_equal(found, expected)


def test_classes_are_values_whatever_they_are(tmp_path: Path) -> None:
    made = digits(400)
    label = np.array([-3, 7, 40, 41, 42, 1000, 1001, 5000, 5001, 70000])[made["label"]].astype(np.float64)
    data = make_digit_data(tmp_path / "d", 400, label=label)
    found = prepared(data, tmp_path / "run", "fields={inputs: [margins, brightness], classes: [label]}",
                     "training.steps=60", "normalise={margins: standard}")  # fmt: skip
    assert found.facts.classes == {"label": (-3, 7, 40, 41, 42, 1000, 1001, 5000, 5001, 70000)}
    surrogate = merlin.load_surrogate(train_run(found)[0].path, device="cpu")
    predicted = surrogate.predict({key: made[key] for key in ("margins", "brightness")})["label"]
    assert set(predicted) <= set(label) and (predicted == label).mean() > 0.5


def test_a_class_that_was_never_seen_is_not_judged(run: RunDirectory, tmp_path: Path) -> None:
    label = digits(60)["label"]
    label[5] = 11
    other = make_digit_data(tmp_path / "d", 60, label=label)
    with pytest.raises(
        UsageError, match=r"has classes that the model does not know: 11; it knows 0, 1, .* 9"
    ):
        evaluate(run.path, data=other)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.arange(30) / 2, "has the value 0.5: classes are told by whole numbers"),
        (np.arange(30) * 2.0**30, "has the value 1073741824: classes are told"),
    ],
)
def test_what_does_not_tell_classes_is_a_finding(tmp_path: Path, values: np.ndarray, message: str) -> None:
    data = make_digit_data(tmp_path / "d", 30, label=values)
    with pytest.raises(ConfigError, match=message):
        prepared(data, tmp_path / "run", "training.batch_size=4")


def test_too_many_values_are_no_classes(tmp_path: Path) -> None:
    ens = open_shards(make_digit_data(tmp_path / "d", 1200, label=np.arange(1200)))
    with pytest.raises(UsageError, match="more than 1,000 values"):
        class_values(ens, Columns(ens).fields["label"])


def test_the_model_says_what_it_needs(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"needs fields\.classes.*inputs: \[image\], classes: \[label\]"):
        prepared(data, tmp_path / "run", "fields={inputs: [image], scalars: [label]}")
    word = "fields={inputs: [image], classes: [label], scalars: [brightness]}"
    with pytest.raises(ConfigError, match="has no 'brightness'"):
        prepared(data, tmp_path / "run", word)
    with pytest.raises(UsageError, match="predicts classes alone; leave y out"):
        build("classifier", Shapes.of(("x",), ("y",), classes={"c": (0, 1)}), {})


def test_scores_of_classes_are_those_of_the_definitions() -> None:
    scores = ClassScores((2, 5, 9))
    true, predicted = np.array([2, 2, 5, 9, 9, 9]), np.array([2, 5, 5, 9, 2, 9])
    given = np.full((6, 3), 0.25) + 0.25 * (predicted[:, None] == np.array([2, 5, 9]))
    for part in (slice(0, 4), slice(4, 6)):
        scores.add(predicted[part], true[part], given[part])
    found = scores.result()
    assert found["accuracy"] == pytest.approx(4 / 6) and found["most_frequent"] == 0.5
    assert found["confusion"] == [[1, 1, 0], [0, 1, 0], [1, 0, 2]]
    assert found["cross_entropy"] == pytest.approx(-(4 * np.log(0.5) + 2 * np.log(0.25)) / 6)
    assert [of["recall"] for of in found["classes"]] == [0.5, 1.0, pytest.approx(2 / 3)]
    assert [of["precision"] for of in found["classes"]] == [0.5, 0.5, 1.0]
