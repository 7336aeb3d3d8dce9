"""Weights and the code that they are of: what files say of it, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import tiny_models
import torch
from surrogate_data import make_surrogate_data
from train_run import StopAt, last_checkpoint, prepare_run, train_run
from trained import make_trained

from merlin.errors import CheckpointError
from merlin.train.checkpoint import read_checkpoint
from merlin.train.models.pretrained import Pretrained
from merlin.train.models.registry import MODELS, code_of, find, require_code
from merlin.train.models.regressor import Regressor
from merlin.train.results.best import load_best
from merlin.train.results.export import model_facts
from merlin.train.results.surrogate import load_surrogate
from merlin.train.run_directory import RunDirectory
from merlin.train.state_file import read_state
from merlin.workspace.prepare import code_version


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"), 600)


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return make_trained(tmp_path_factory.mktemp("run"), data=data)


def test_every_model_of_ours_has_a_version() -> None:
    assert all(isinstance(find(name).make.version, int) for name in MODELS)


def test_all_files_with_weights_say_whose_they_are(run) -> None:
    told = {"name": "regressor", "version": Regressor.version, "merlin": code_version()}
    assert code_of("regressor") == told and code_version()
    assert read_checkpoint(last_checkpoint(run.trainer(0).checkpoints))["code"] == told
    best = read_state(run.best / "model.pt")["model"]
    assert {key: best[key] for key in told} == told
    assert run.facts().model_version == Regressor.version
    exported = model_facts(load_surrogate(run.path, device="cpu"))
    assert (exported["model"], exported["model_version"], exported["merlin"]) == tuple(told.values())


def test_a_best_model_of_other_code_is_refused_with_what_to_do(run, monkeypatch) -> None:
    monkeypatch.setattr(Regressor, "version", 9)
    with pytest.raises(CheckpointError, match=r"of version 1, and this is version 9") as raised:
        load_best(run.path)
    assert str(run.best / "model.pt") in str(raised.value)
    assert f"Train it again, or use Merlin {code_version()}." in str(raised.value)


def test_a_run_of_other_code_does_not_go_on(data, tmp_path, monkeypatch) -> None:
    words = ["model={name: regressor, width: 8}"]
    prepared = prepare_run(data, tmp_path / "run", *words)
    run, ending, _ = train_run(prepared, stop=StopAt(12))
    assert ending.step == 12
    monkeypatch.setattr(Regressor, "version", 2)
    with pytest.raises(CheckpointError, match=rf"the checkpoint of step 12 in {run.path}.* of version 1"):
        train_run(prepared, run=run)
    monkeypatch.undo()
    assert train_run(prepared, run=run)[1].step == 40


def test_merlin_train_looks_at_the_version_before_it_starts_anybody(data, tmp_path, monkeypatch) -> None:
    from merlin.train.prepare import prepare

    run = make_trained(tmp_path, data=data, steps=4)
    monkeypatch.setattr(Regressor, "version", 2)
    with pytest.raises(CheckpointError, match=r"run is of the model regressor of version 1"):
        prepare(run.path)


def test_an_autoencoder_of_other_code_is_refused(data, tmp_path) -> None:
    words = ["model={name: icf_autoencoder, latent: 4, capacity: 0.2}", "training.steps=4"]
    coder, _, _ = train_run(prepare_run(data, tmp_path / "coder", *words, "fields.images=[image]"))
    Pretrained(coder.path)
    shutil.copytree(coder.path, tmp_path / "old")
    path = tmp_path / "old" / "best" / "model.pt"
    state = read_state(path)
    state["model"]["version"] = 0
    torch.save(state, path)
    with pytest.raises(CheckpointError, match=r"model\.autoencoder: .*old is of .* of version 0"):
        Pretrained(tmp_path / "old")


def test_users_models_are_compared_if_both_tell_a_version(monkeypatch) -> None:
    name = "tiny_models:Elastic"
    recorded = {"name": name, "version": 3, "merlin": "0"}
    require_code(name, recorded, "here")
    require_code(name, {**recorded, "version": None}, "here")
    require_code("tiny_models:Noisy", {"name": "tiny_models:Noisy"}, "here")
    with pytest.raises(
        CheckpointError, match=r"here is of .* of version 2, and this is version 3[\s\S]*use the code"
    ):
        require_code(name, {**recorded, "version": 2}, "here")
    monkeypatch.setattr(tiny_models.greedy, "version", "2026-11", raising=False)
    assert code_of("tiny_models:greedy")["version"] == "2026-11"
    with pytest.raises(CheckpointError, match="without a version"):
        require_code("regressor", {"name": "regressor"}, "here")
    with pytest.raises(CheckpointError, match="is of the model regressor, and not of"):
        require_code(name, {"name": "regressor"}, "here")
