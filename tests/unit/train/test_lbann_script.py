"""What is written for LBANN is the same run: a script that builds the same model, computes the same losses, and has the
same gradients, on data that is normalised in the same way."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch
import yaml
from lbann_stand_in import Graph, L2WeightRegularization, installed
from surrogate_data import make_surrogate_data
from train_run import prepare_run, train_run

from merlin.cli.main import main
from merlin.errors import UsageError
from merlin.train.config_file import load_config
from merlin.train.lbann.emit import SCRIPT, emit
from merlin.train.prepare import build_trainee, open_data
from merlin.train.run_directory import RunDirectory, create_run

IMAGES = "fields.images=[image]"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"), 200)


def write_config(data: Path, folder: Path, **blocks: object) -> Path:
    usual = {"data": str(data), "fields": {"images": ["image"]}, "training": {"steps": 90, "batch_size": 16}}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**usual, **blocks}))
    return path


def run_script(out: Path, *argv: str) -> SimpleNamespace:
    """Run the script with the stand-in; returns what it gave to LBANN's launcher."""
    with installed() as lbann:
        before, sys.argv = sys.argv, [SCRIPT, *argv]
        try:
            with pytest.raises(SystemExit) as end:
                runpy.run_path(str(out / SCRIPT), run_name="__main__")
        finally:
            sys.argv = before
        assert end.value.code == 0
        (ran,) = lbann.ran
    return ran


def make_trainee(config_path: Path, folder: Path):
    """The model that the script was written of, a batch, and that batch as LBANN reads it."""
    from merlin.train.prepare import prepare

    prepared = prepare(config_path)
    run = create_run(folder / "run", prepared.config, prepared.facts, prepared.normaliser)
    opened = open_data(RunDirectory(run.path), load_config(run.config_path).config)
    torch.manual_seed(3)
    trainee = build_trainee(prepared.config, opened.shapes)
    trainee.start(prepared.normaliser)
    batch = opened.shapes.with_channels(opened.dataset("train")[list(range(8))])
    response = torch.cat([batch["scalars"], *(batch[name].flatten(1) for name in opened.shapes.images)], 1)
    return trainee, batch, {"datum": batch["inputs"], "response": response}


def weights_of(trainee) -> dict[str, torch.Tensor]:
    known = {name: value.detach().clone() for name, value in trainee.state_dict().items()}
    judges = {n: v for n, v in known.items() if n.startswith("discriminator.")}
    return known | {f"frozen_{name}": value.clone() for name, value in judges.items()}


MODELS = {
    "regressor": {"name": "regressor", "width": 12, "depth": 2, "image_weight": 0.5},
    "regressor_cnn": {"name": "regressor", "width": 12, "kind": "cnn"},
    "autoencoder": {"name": "icf_autoencoder", "latent": 4, "capacity": 0.25},
    "autoencoder_cnn": {"name": "icf_autoencoder", "latent": 4, "capacity": 0.25, "kind": "cnn"},
    "autoencoder_joint": {"name": "icf_autoencoder", "latent": 4, "capacity": 0.25, "discriminator": "joint"},
}


def require_same_beginning(initializer, drawn: torch.Tensor) -> None:
    """Weights are drawn from the distribution that PyTorch drew them from, as far as one draw can tell."""
    known, spread = initializer.options, float(drawn.square().mean().sqrt())
    kind, many = type(initializer).__name__, drawn.numel() >= 64
    if kind == "ConstantInitializer":
        assert bool((drawn == known["value"]).all())
    elif kind == "UniformInitializer":
        assert float(drawn.abs().max()) <= known["max"] * (1 + 1e-6)
        assert not many or spread == pytest.approx(known["max"] / 3**0.5, rel=0.3)
    else:
        assert kind == "NormalInitializer"
        assert not many or spread == pytest.approx(known["standard_deviation"], rel=0.3)


def require_same_model(config_path: Path, out: Path, folder: Path) -> None:
    """Losses and gradients of the script's model are those of the trainee's phases together."""
    ran = run_script(out)
    trainee, batch, read = make_trainee(config_path, folder)
    weights = weights_of(trainee)
    used = {w.name: w for it in ran.model.layers for w in it.weights}
    trained = {name for name, w in used.items() if type(w.optimizer).__name__ != "NoOptimizer"}
    parameters = {name for name, p in trainee.named_parameters() if p.requires_grad}
    assert trained == parameters, trained ^ parameters
    for name in trained:
        weights[name].requires_grad_(True)

    for name in trained:
        require_same_beginning(used[name].initializer, dict(trainee.named_parameters())[name].detach())
    torch.manual_seed(5)
    graph = Graph(read, weights)
    total = graph.objective(ran.model)
    total.backward()
    expected, gradients = 0.0, {}
    torch.manual_seed(5)
    for phase in trainee.phases:
        trainee.zero_grad()
        loss = trainee(batch, phase)["loss"]
        loss.backward()
        expected += float(loss.detach())
        mine = {id(p) for p in trainee.parameters_of(phase)}
        gradients |= {
            n: p.grad.clone() for n, p in trainee.named_parameters() if id(p) in mine and p.grad is not None
        }
    assert float(total.detach()) == pytest.approx(expected, rel=1e-5)
    for name, gradient in gradients.items():
        torch.testing.assert_close(weights[name].grad, gradient, rtol=1e-3, atol=1e-6)

    with torch.no_grad():
        own = trainee.metrics(batch)
        found = {metric.name: float(graph(metric.layer).mean()) for metric in ran.model.metrics}
    assert set(found) == set(trainee.directions())
    for name, value in own.items():
        assert found[name] == pytest.approx(float(value.mean()), rel=1e-4)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_the_script_builds_the_same_model(data: Path, tmp_path: Path, model: dict[str, object]) -> None:
    config = write_config(data, tmp_path, model=model)
    emit(config, [], tmp_path / "out")
    require_same_model(config, tmp_path / "out", tmp_path)


def test_a_surrogate_comes_with_the_weights_of_its_autoencoder(data: Path, tmp_path: Path) -> None:
    words = (
        "training.steps=4",
        "training.validate_every=4",
        IMAGES,
        "model={name: icf_autoencoder, latent: 3, capacity: 0.25}",
    )
    coder, _, _ = train_run(prepare_run(data, tmp_path / "coder", *words))
    model = {"name": "icf_surrogate", "capacity": 0.25, "cycle": 0.1, "autoencoder": str(coder.path)}
    config = write_config(data, tmp_path, model=model)
    emit(config, [], tmp_path / "out")
    require_same_model(config, tmp_path / "out", tmp_path)
    ran = run_script(tmp_path / "out")
    files = {}
    for it in ran.model.layers:
        for w in it.weights:
            if w.name.startswith("coder."):
                files[w.name] = np.load(w.initializer.options["file"])
    trainee, _, _ = make_trainee(config, tmp_path / "again")
    assert files.keys() == {n for n in trainee.state_dict() if n.startswith("coder.")}
    for name, value in files.items():
        np.testing.assert_array_equal(value, trainee.state_dict()[name].numpy())
    callbacks = [c for c in ran.model.callbacks if type(c).__name__ == "CallbackReplaceWeights"]
    pairs = {
        (c.options["source_layers"].split()[0], c.options["destination_layers"].split()[0]) for c in callbacks
    }
    assert pairs == {
        ("forward_discriminator.0_1", "frozen_forward.0_1"),
        ("inverse_discriminator.0_1", "frozen_inverse.0_1"),
    }
    assert {c.options["batch_interval"] for c in callbacks} == {2}


def test_hyper_parameters_and_the_tournament_are_those_of_the_configuration(
    data: Path, tmp_path: Path
) -> None:
    config = write_config(
        data,
        tmp_path,
        seed=11,
        fields={"images": []},
        model={"name": "icf_autoencoder", "latent": 2},
        optimizer={
            "lr": 0.003,
            "betas": [0.5, 0.9],
            "phases": {"discriminator": {"lr": 0.001, "weight_decay": 0.02}},
        },
        schedule={"name": "cosine", "warmup_steps": 9, "final": 0.1},
        tournament={
            "trainers": 3,
            "interval": 20,
            "exchange": ["autoencoder"],
            "metrics": [{"name": "scalars"}],
            "tournament_fraction": 0.2,
        },
    )
    emit(config, [], tmp_path / "out")
    ran = run_script(tmp_path / "out", "--nodes", "2", "--procs-per-trainer", "4")
    ltfb = ran.trainer.training_algo
    assert (ran.trainer.mini_batch_size, ran.trainer.random_seed) == (16, 11)
    assert (ltfb.local_algo.num_iterations, ltfb.metalearning_steps) == (20, 4)
    assert ltfb.metalearning.metric_strategies == {"scalars": 0}
    exchanged = ltfb.metalearning.exchange_strategy.weights_names
    assert exchanged and all(name.startswith("coder.") for name in exchanged)
    known = {w.name: w.optimizer.options for it in ran.model.layers for w in it.weights}
    assert known["coder.encoder.0.weight"] == {"learn_rate": 0.003, "beta1": 0.5, "beta2": 0.9, "eps": 1e-8}
    assert known["discriminator.0.bias"]["learn_rate"] == 0.001
    (decay,) = (t for t in ran.model.objective_function.terms if isinstance(t, L2WeightRegularization))
    assert decay.scale == 0.02 and all(w.name.startswith("discriminator.") for w in decay.weights)
    cosines = [
        c.options for c in ran.model.callbacks if type(c).__name__ == "CallbackCosineDecayLearningRate"
    ]
    assert [(c["lr_max"], c["lr_min"], c["decay_steps"]) for c in cosines] == [
        (0.001, pytest.approx(0.0001), 81),
        (0.003, pytest.approx(0.0003), 81),
    ]
    assert ran.options["nodes"] == 2 and "--procs_per_trainer=4" in ran.options["lbann_args"]
    train, validation = ran.reader.readers
    assert (
        train.sample_list_per_trainer
        and train.tournament_fraction == 0.2
        and not validation.sample_list_per_trainer
    )
    lists = [Path(train.sample_list).with_name(f"t{k}_{Path(train.sample_list).name}") for k in range(3)]
    assert all(path.is_file() for path in (*lists, Path(validation.sample_list)))


def test_values_are_read_as_the_run_normalises_them(data: Path, tmp_path: Path) -> None:
    config = write_config(
        data,
        tmp_path,
        model={"name": "regressor", "width": 8},
        fields={"inputs": ["c", "a"], "scalars": ["time", "energy"], "images": ["image"]},
        normalise={"inputs": "standard", "energy": "minmax", "image": "scale"},
    )
    emit(config, [], tmp_path / "out")
    schema = yaml.safe_load((tmp_path / "out/data_schema.yaml").read_text())
    leaves = {**schema["inputs"], **schema["outputs"]["scalars"], **schema["outputs"]["images"]}
    order = sorted(leaves, key=lambda name: leaves[name]["metadata"]["ordering"])
    assert order == ["c", "a", "time", "energy", "image"]
    train = run_script(tmp_path / "out").reader.readers[0]
    lines = Path(train.sample_list).read_text().splitlines()
    bundle, _, _, *rows = lines[3].split()
    _, batch, _ = make_trainee(config, tmp_path)
    with h5py.File(Path(lines[2]) / bundle) as file:
        for i in range(5):
            sample = file[rows[i]]
            for name, values in (("c", batch["inputs"][i, 0]), ("time", batch["scalars"][i, 0])):
                place = "inputs" if name == "c" else "outputs/scalars"
                known = leaves[name]["metadata"]
                read = known["scale"] * sample[f"{place}/{name}"][0] + known["bias"]
                assert read == pytest.approx(float(values), abs=1e-4)
            known = leaves["image"]["metadata"]
            pixels = sample["outputs/images/image"][:].reshape(*known["dims"], known["channels"])
            read = pixels * np.array(known["scale"]) + np.array(known["bias"])
            np.testing.assert_allclose(read.transpose(2, 0, 1), batch["image"][i], rtol=1e-4, atol=1e-5)


def test_what_lbann_does_not_do_is_refused_all_at_once(data: Path, tmp_path: Path) -> None:
    config = write_config(
        data,
        tmp_path,
        model={"name": "tiny_models:Noisy"},
        normalise={"energy": "log"},
        training={"steps": 50, "batch_size": 16, "ema": 0.9, "clip_norm": 1.0},
        tournament={"trainers": 2, "strategy": "truncation", "interval": 10},
    )
    with pytest.raises(UsageError) as told:
        emit(config, [], tmp_path / "out")
    for words in (
        "only regressor",
        "'energy' is normalised by its logarithm",
        "training.ema",
        "clip_norm",
        "truncation",
    ):
        assert words in str(told.value)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_and_says_where(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_config(data, tmp_path, model={"name": "regressor", "width": 8})
    with pytest.raises(SystemExit) as end:
        main(["train", str(config), "fields.images=[]", "--emit", "lbann", str(tmp_path / "out")])
    assert not end.value.code and str(tmp_path / "out" / SCRIPT) in capsys.readouterr().out
    compile((tmp_path / "out" / SCRIPT).read_text(), SCRIPT, "exec")
