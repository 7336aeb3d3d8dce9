"""Tournaments in which copies of a model get other widths: rounds, checkpoints, the best model, the report."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from open_loops import loops_of
from surrogate_data import make_surrogate_data
from train_run import prepare_run, state_digest, train_run

from merlin.errors import ConfigError, TrainingError, UsageError
from merlin.train.config_file import parse_config
from merlin.train.lbann.emit import refuse
from merlin.train.metrics_log import read_metrics
from merlin.train.prepare import check
from merlin.train.results.evaluate import evaluate
from merlin.train.results.history import read_history
from merlin.train.results.report.sections import make_sections
from merlin.train.results.report.tables import trainers_table
from merlin.train.results.surrogate import load_surrogate
from merlin.train.state_file import read_state
from merlin.train.tournament.mutation import mutated

MODEL = "model={name: regressor, width: 16, depth: 2}"
WORDS = (
    "tournament={trainers: 3, interval: 10, wait: 0, strategy: truncation, top: 1, mutation: {width: 2}}",
    "training={steps: 100, batch_size: 64, log_every: 5, ema: 0.5, threads: 1, device: cpu}",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"), 1500)


@pytest.fixture
def loops(data, tmp_path):
    with loops_of(data, tmp_path / "run", *WORDS) as opened:
        yield opened


def play(loop, number: int = 1) -> dict:
    return loop.tournament.play(loop.trainer, number)


def copied(loops: list, number: int = 1) -> dict:
    """Let the first trainer be the best, and the others copy it; what the last one did."""
    loops[0].trainer.train_steps(20)
    for loop in loops[1:]:
        for key, value in loop.trainer.trainee.state_dict().items():
            if not key.startswith("coder."):
                value.mul_(30)
        loop.trainer.train_steps(1)
    for loop in loops[:-1]:
        play(loop, number)
    return play(loops[-1], number)


@pytest.mark.parametrize("model", [MODEL, "model={name: 'tiny_models:Elastic'}"])
def test_a_copy_of_another_width_goes_on_from_its_parents_weights(loops, model) -> None:
    one, *_, last = some = loops(model)
    parameters = sum(p.numel() for p in last.trainer.trainee.parameters())
    facts = copied(some)
    assert facts["kept"] == "partner" and facts["partner"] == 0
    factor = facts["mutated"]["width"]
    assert 0.5 <= factor <= 2 and factor != 1 and facts["capacity"] == factor == last.trainer.capacity
    now = sum(p.numel() for p in last.trainer.trainee.parameters())
    assert (now > parameters) == (factor > 1) and now != parameters
    if factor > 1:
        assert last.trainer.evaluate(last.validation) == pytest.approx(
            one.trainer.evaluate(last.validation), rel=1e-4
        )
    before = last.trainer.evaluate(last.validation)["loss"]
    last.trainer.train_steps(30)
    assert last.trainer.evaluate(last.validation)["loss"] < before


def test_the_draws_of_a_wider_model_depend_on_nothing_but_seed_round_and_trainer(loops) -> None:
    one, other, third = loops(MODEL)
    one.trainer.train_steps(3)
    state = {**one.trainer.export_state(), "capacity": 1.7}
    for seed, loop in enumerate((other, third)):
        loop.trainer.index = 5
        torch.manual_seed(seed)
        random = torch.get_rng_state()
        loop.trainer.import_state(state)
        assert torch.equal(torch.get_rng_state(), random)
    assert state_digest(other.trainer.export_state()) == state_digest(third.trainer.export_state())


def test_a_checkpoint_holds_the_width_and_the_run_goes_on_bit_by_bit(loops) -> None:
    _, fresh, last = some = loops("model={name: 'tiny_models:Elastic'}", "optimizer.name=adamw")
    copied(some)
    last.trainer.train_steps(3)
    state = last.trainer.state_dict()
    digest = state_digest(state)
    fresh.trainer.index = last.trainer.index
    fresh.trainer.loader, other = last.trainer.loader, fresh.trainer.loader
    fresh.trainer.load_state_dict(read_back(state, last.checkpoints.directory))
    assert state_digest(fresh.trainer.state_dict()) == digest
    assert fresh.trainer.capacity == last.trainer.capacity != 1
    fresh.trainer.train_steps(5)
    after = state_digest(fresh.trainer.state_dict())
    last.trainer.load_state_dict(read_back(state, last.checkpoints.directory))
    last.trainer.train_steps(5)
    assert state_digest(last.trainer.state_dict()) == after
    fresh.trainer.loader = other


def read_back(state: dict, directory: Path) -> dict:
    path = directory / "state.pt"
    directory.mkdir(parents=True, exist_ok=True)
    if not path.is_file():
        torch.save(state, path)
    return torch.load(path, weights_only=True)


def test_a_trainer_of_another_width_takes_its_parents_first(loops) -> None:
    one, other, _ = loops(MODEL)
    one.trainer.import_state({**one.trainer.export_state(), "capacity": 3.0})
    other.trainer.import_state({**other.trainer.export_state(), "capacity": 0.5})
    other.trainer.import_state(one.trainer.export_state())
    assert other.trainer.capacity == 3.0
    assert state_digest(other.trainer.export_state()) == state_digest(one.trainer.export_state())


def test_generators_of_another_width_meet_discriminators_that_get_it_too(loops, data, tmp_path) -> None:
    usual = ("fields.images=[image]", "training.steps=8", "training.validate_every=8")
    coder = "model={name: icf_autoencoder, latent: 4, capacity: 0.1, kind: cnn}"
    run, _, _ = train_run(prepare_run(data, tmp_path / "coder", coder, *usual))
    model = f"model={{name: icf_surrogate, capacity: 0.1, autoencoder: {run.path}}}"
    *_, last = some = loops(model, usual[0], "tournament.exchange=[generators]")
    frozen = state_digest(last.trainer.trainee.coder.state_dict())
    facts = copied(some)
    assert facts["kept"] == "partner" and facts["capacity"] == pytest.approx(0.1 * facts["mutated"]["width"])
    units = {
        "forward_generator": 1024,
        "inverse_generator": 64,
        "inverse_discriminator": 64,
        "frozen_forward": 64,
    }
    for name, usually in units.items():
        *_, layer = (m for m in getattr(last.trainer.trainee, name) if isinstance(m, torch.nn.Linear))
        assert layer.in_features == round(usually * facts["capacity"])
    assert state_digest(last.trainer.trainee.coder.state_dict()) == frozen
    last.trainer.train_steps(3)


def test_a_width_that_is_not_allowed_stays_as_it_was() -> None:
    def state(capacity: float) -> dict:
        return {"weights": {}, "optimizers": {}, "capacity": capacity}

    drawn = [mutated(state(1.0), {"width": 2.0}, 7, number, 1, 1.0) for number in range(40)]
    assert all(found["capacity"] == factors["width"] for found, factors in drawn)
    assert min(f["width"] for _, f in drawn) < 0.6 and max(f["width"] for _, f in drawn) > 1.7
    at_the_edge = [mutated(state(4.0), {"width": 2.0}, 7, number, 1, 1.0) for number in range(40)]
    assert all(found["capacity"] == 4.0 * factors["width"] <= 4.0 for found, factors in at_the_edge)
    refused = [factors["width"] == 1.0 for _, factors in at_the_edge]
    assert refused == [factors["width"] > 1 for _, factors in drawn]


def test_without_a_factor_widths_stay_and_nothing_is_said_about_them(loops) -> None:
    some = loops(MODEL, "tournament.mutation.width=1")
    facts = copied(some)
    assert set(facts["mutated"]) == {"lr"} and "capacity" not in facts
    assert some[-1].trainer.capacity is None and some[-1].trainer.state_dict()["capacity"] is None


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("tiny_models:Noisy", "c.yaml:8:67: error: the width of the model tiny_models:Noisy cannot change: it knows"),
        ("tiny_models:rigid", "its capacity changes none of its widths"),
        ("tiny_models:Recurrent", "memory.weight_ih_l0 is a weight of GRU"),
    ],
)  # fmt: skip
def test_models_whose_width_cannot_change_are_refused_with_the_line(data, tmp_path, model, message) -> None:
    text = (
        f"data: {data}\n\ndirectory: {tmp_path / 'run'}\nfields:\n  images: []\n\nmodel: {{name: '{model}'}}\n"
        "tournament: {trainers: 2, strategy: truncation, mutation: {width: 1.5}, interval: 5}\n"
    )
    with pytest.raises(ConfigError) as raised:
        check(parse_config(text, "c.yaml"))
    assert message in str(raised.value)
    allowed = text.replace("truncation", "random_pairwise")
    assert not check(parse_config(allowed, "c.yaml")).config.mutates_width


def test_the_best_model_is_built_with_its_own_width_and_the_report_tells_it(data, tmp_path) -> None:
    words = ["optimizer.lr=0.003", "training.validate_every=20", "tournament.trainers=2", "tournament.top=1"]
    prepared = prepare_run(data, tmp_path / "run", *WORDS, MODEL, *words)
    run = prepared.begin()
    for trainer in (0, 1):  # who comes second copies who has finished
        train_run(prepared, run=run, trainer=trainer)
    rounds = [line for line in read_metrics(run.trainer(1).path / "metrics.jsonl") if line["kind"] == "round"]
    copies = [line for line in rounds if "capacity" in line]
    assert copies
    best = json.loads((run.best / "best.json").read_text())
    assert best["trainer"] == 1
    options = read_state(run.best / "model.pt")["model"]["options"]
    present = [line["capacity"] for line in copies if line["step"] <= best["step"]]
    assert options["width"] == 16 and options["capacity"] == present[-1]
    surrogate = load_surrogate(run.path, device="cpu")
    made = surrogate.predict(np.zeros((2, 4)))
    assert made["energy"].shape == (2,) and np.isfinite(made["energy"]).all()
    evaluation = evaluate(run.path, split="validation", device="cpu")
    assert evaluation.facts["metrics"]["loss"] == pytest.approx(best["value"], rel=1e-4)
    history = read_history(run)
    assert history.capacities() == {1: copies[-1]["capacity"]}
    assert "at the right: capacity" in make_sections(evaluation, history)["tournament"].note
    table = trainers_table(history, evaluation.facts["trainer"])
    assert "as configured" in table and f"{copies[-1]['capacity']:.2f}" in table


def test_too_little_memory_for_a_wider_model_is_explained(data, tmp_path) -> None:
    words = [*WORDS, "model={name: 'tiny_models:hungry'}", "tournament.trainers=2"]
    prepared = prepare_run(data, tmp_path / "run", *words)
    run = prepared.begin()
    train_run(prepared, run=run, trainer=0)
    with pytest.raises(TrainingError, match=r"out of memory[\s\S]*tournament\.mutation\.width smaller"):
        train_run(prepared, run=run, trainer=1)


def test_lbann_is_told_no_widths(data, tmp_path) -> None:
    prepared = prepare_run(data, tmp_path / "run", *WORDS, MODEL)
    with pytest.raises(UsageError, match=r"tournament\.mutation\.width: all trainers have the same model"):
        refuse(prepared.config, prepared.normaliser, prepared.facts)
