"""A surrogate on top of another run's autoencoder: what it takes over, and what it refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from surrogate_data import make_surrogate_data
from train_run import StopAt, last_checkpoint, train_run

from merlin.errors import CheckpointError, MerlinError, UsageError
from merlin.train.checkpoint import Checkpoints, read_checkpoint
from merlin.train.config_file import parse_config
from merlin.train.metrics_log import read_metrics
from merlin.train.models.registry import build
from merlin.train.prepare import Prepared, check, prepare
from merlin.train.run_directory import RunDirectory
from merlin.train.state_file import read_state

YAML = """
data: {data}
directory: {directory}
fields: {{scalars: [energy, radius], images: [image]}}
optimizer: {{lr: 0.003}}
training: {{steps: 60, batch_size: 32, validate_every: 20, log_every: 10, threads: 1}}
"""


def prepared(data: Path, directory: Path, *words: str) -> Prepared:
    return check(parse_config(YAML.format(data=data, directory=directory), "train.yaml", words))


def prepare_surrogate(data: Path, directory: Path, autoencoder: Path, *words: str) -> Prepared:
    model = ["model.name=icf_surrogate", "model.capacity=0.25", f"model.autoencoder={autoencoder}"]
    return prepared(data, directory, *model, *words)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"), 800)


@pytest.fixture(scope="module")
def autoencoder(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    directory = tmp_path_factory.mktemp("autoencoder") / "run"
    words = ["model={name: icf_autoencoder, latent: 8, capacity: 0.5}"]
    return train_run(prepared(data, directory, *words))[0]


def validations(run: RunDirectory) -> list[dict[str, float]]:
    lines = read_metrics(run.trainer(0).path / "metrics.jsonl")
    return [line["values"] for line in lines if line["kind"] == "validation"]


def test_the_autoencoder_learns_to_reconstruct(autoencoder) -> None:
    first, *_, last = validations(autoencoder)
    assert set(last) == {"loss", "scalars", "images"} and last["loss"] < 0.8 * first["loss"]


def test_a_surrogate_learns_and_leaves_the_autoencoder_as_it_is(data, autoencoder, tmp_path) -> None:
    run, _, _ = train_run(prepare_surrogate(data, tmp_path / "run", autoencoder.path))
    first, *_, last = validations(run)
    assert last["loss"] < 0.8 * first["loss"] and last["cycle"] < first["cycle"]
    own = read_state(autoencoder.best / "model.pt")["state_dict"]
    taken = read_checkpoint(last_checkpoint(run.trainer(0).checkpoints))["trainer"]["model"]
    coder = {name: value for name, value in own.items() if name.startswith("coder.")}
    assert coder and all(torch.equal(value, taken[name]) for name, value in coder.items())


def test_a_run_that_has_to_begin_anew_takes_over_the_autoencoder_again(
    data, autoencoder, tmp_path, monkeypatch
) -> None:
    words = ("training.steps=30", "training.validate_every=15", "training.ema=0.9")
    again = prepare_surrogate(data, tmp_path / "run", autoencoder.path, *words)
    run, _, _ = train_run(again, stop=StopAt(15))
    # as where another trainer of a process group has no checkpoint at all
    monkeypatch.setattr(Checkpoints, "newest", lambda self, like: None)
    _, ending, recorder = train_run(again, run=run)
    assert ending.step == 30 and not any("resumed" in note for note in recorder.notes)
    other = prepare_surrogate(data, tmp_path / "other", autoencoder.path, *words)
    unbroken, _, _ = train_run(other)
    one, two = (
        read_checkpoint(last_checkpoint(r.trainer(0).checkpoints))["trainer"] for r in (run, unbroken)
    )
    for name in ("model", "average"):
        assert all(torch.equal(one[name][key], value) for key, value in two[name].items())


def test_a_run_goes_on_and_predicts_without_the_autoencoders_run(data, autoencoder, tmp_path) -> None:
    other = tmp_path / "autoencoder"
    shutil.copytree(autoencoder.path, other)
    train_run(prepare_surrogate(data, tmp_path / "run", other, "training.steps=20"))
    shutil.rmtree(other)
    again = prepare(tmp_path / "run", ["training.steps=40"])
    run, ending, _ = train_run(again, run=again.run)
    assert ending.step == 40
    best = read_state(run.best / "model.pt")
    model = build(best["model"]["name"], run.facts().shapes, best["model"]["options"])
    model.load_state_dict(best["state_dict"])
    made = model.eval().predict(torch.rand(3, 4))
    assert made["scalars"].shape == (3, 2) and made["image"].shape == (3, 2, 8, 8)


def test_a_run_that_has_moved_with_its_autoencoder_is_the_same_run(data, autoencoder, tmp_path) -> None:
    other = tmp_path / "elsewhere"
    shutil.copytree(autoencoder.path, other)
    digests = {prepare_surrogate(data, tmp_path / "run", p).config.digest for p in (autoencoder.path, other)}
    assert len(digests) == 1


def refused(error: type[MerlinError], *arguments) -> str:
    with pytest.raises(error) as raised:
        prepare_surrogate(*arguments)
    assert not Path(arguments[1]).exists()
    return str(raised.value)


def test_fields_that_the_autoencoder_was_not_trained_on_are_named(data, autoencoder, tmp_path) -> None:
    arguments = (data, tmp_path / "run", autoencoder.path)
    told = refused(UsageError, *arguments, "fields.scalars=[energy, time]")
    assert "trained on other scalars: it has radius; it has no time" in told
    assert "Write fields.scalars: [energy, radius]" in told
    assert "their order differs" in refused(UsageError, *arguments, "fields.scalars=[radius, energy]")
    assert "other images: it has image" in refused(UsageError, *arguments, "fields.images=[]")


def test_values_that_were_normalised_otherwise_are_named(data, autoencoder, tmp_path) -> None:
    told = refused(UsageError, data, tmp_path / "run", autoencoder.path, "normalise={image: minmax}")
    assert "normalised otherwise: image\n" in told and "same normalise block" in told
    grown = make_surrogate_data(tmp_path / "grown", 900)
    told = refused(UsageError, grown, tmp_path / "run", autoencoder.path)
    assert "normalised otherwise: energy, radius, image" in told and "train the autoencoder again" in told


def test_what_is_no_autoencoder_is_refused_before_anything_is_written(data, autoencoder, tmp_path) -> None:
    directory = tmp_path / "run"
    assert "there is no training run" in refused(UsageError, data, directory, tmp_path / "nowhere")
    begun = prepared(data, tmp_path / "begun", "model.name=icf_autoencoder").begin()
    assert "has no best model yet" in refused(UsageError, data, directory, begun.path)
    regressor = train_run(
        prepared(data, tmp_path / "other", "model={name: regressor, width: 8}", "training.steps=2")
    )[0]
    assert "is a run of the model regressor" in refused(UsageError, data, directory, regressor.path)
    damaged = tmp_path / "damaged"
    shutil.copytree(autoencoder.path, damaged)
    (damaged / "best" / "model.pt").write_bytes(b"nothing")
    assert "is damaged" in refused(CheckpointError, data, directory, damaged)


def test_an_autoencoder_that_was_trained_on_is_another_one(data, autoencoder, tmp_path) -> None:
    written = prepare_surrogate(data, tmp_path / "run", autoencoder.path)
    source = dict(written.config.model.options["autoencoder"], digest="0" * 64)
    with pytest.raises(UsageError, match="has another best model than when this configuration was written"):
        prepare_surrogate(data, tmp_path / "run", f"{source}".replace("'", '"'))


def test_a_surrogate_without_an_autoencoder_says_what_is_missing(data, tmp_path) -> None:
    with pytest.raises(MerlinError, match="autoencoder"):
        prepared(data, tmp_path / "run", "model.name=icf_surrogate")
