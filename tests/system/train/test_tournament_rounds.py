"""A round as a trainer plays it, with real models. One after another in this process: who comes first meets nobody."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from open_loops import loops_of
from surrogate_data import make_surrogate_data
from train_run import prepare_run, state_digest

from merlin.errors import ConfigError
from merlin.train.events import StopRequest
from merlin.train.metrics_log import read_metrics
from merlin.train.tournament.exchange import Summary
from merlin.train.tournament.mutation import mutated

WORDS = ("tournament={trainers: 3, interval: 10, wait: 0}", "training.steps=100")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


@pytest.fixture
def loops(data, tmp_path):
    with loops_of(data, tmp_path / "run", *WORDS) as opened:
        yield opened


def model_of(loop) -> str:
    return state_digest(loop.trainer.export_state())


def ruin(loop, scale: float) -> None:
    with torch.no_grad():
        for parameter in loop.trainer.trainee.parameters():
            parameter.mul_(scale)


def play(loop, number: int = 1) -> dict:
    return loop.tournament.play(loop.trainer, number)


def test_the_better_model_is_kept_with_the_optimisers_state(loops) -> None:
    one, other = loops(num=2)
    one.trainer.train_steps(30)
    other.trainer.train_steps(3)
    ruin(other, 30.0)
    assert "kept" not in play(one)  # nobody has offered anything yet
    before = model_of(one)
    facts = play(other)
    assert facts["kept"] == "partner" and facts["partner"] == 0 and facts["partner_round"] == 1
    assert facts["scores"]["partner"]["loss"] < facts["scores"]["local"]["loss"]
    assert model_of(other) == before
    assert other.trainer.evaluate(other.validation) == one.trainer.evaluate(one.validation)
    seconds = other.tournament.take_seconds()
    assert seconds["evaluation_s"] > 0 and seconds["exchange_s"] > 0


def test_a_model_that_is_kept_is_what_it_was_bit_by_bit(loops) -> None:
    one, other = loops("training.ema=0.9", "training.clip_norm=1", num=2)
    one.trainer.train_steps(4)
    other.trainer.train_steps(30)
    ruin(one, 30.0)
    play(one)
    before, random = state_digest(other.trainer.state_dict()), torch.get_rng_state()
    facts = play(other)
    assert facts["kept"] == "local" and "loss is better" in facts["reason"]
    assert state_digest(other.trainer.state_dict()) == before
    assert torch.equal(torch.get_rng_state(), random)


def test_a_model_that_is_no_number_loses_and_is_not_taken(loops) -> None:
    one, other = loops(num=2)
    ruin(one, math.nan)
    play(one)
    facts = play(other)
    assert facts["kept"] == "local" and facts["scores"]["partner"] == {"loss": None}
    facts = play(one, 2)
    assert facts["kept"] == "partner" and facts["partner_round"] == 1
    assert model_of(one) == model_of(other)
    assert math.isfinite(one.trainer.evaluate(one.validation)["loss"])


def test_named_parts_move_and_the_rest_stays(loops) -> None:
    one, other = loops("model.name=tiny_models:Gan", "tournament.exchange=[generators]", num=2)
    one.trainer.train_steps(30)
    ruin(other, 50.0)
    discriminator = state_digest(other.trainer.trainee.discriminator.state_dict())
    play(one)
    assert play(other)["kept"] == "partner"
    assert state_digest(other.trainer.export_state(["generators"])) == state_digest(
        one.trainer.export_state(["generators"])
    )
    assert state_digest(other.trainer.trainee.discriminator.state_dict()) == discriminator


def test_several_metrics_and_their_directions_decide(loops) -> None:
    words = ["model.name=regressor", "tournament.metrics=[{name: loss}, {name: mae, direction: max}]"]
    one, other = loops(*words, num=2)
    one.trainer.train_steps(30)
    ruin(other, 5.0)
    play(one)
    assert play(other)["reason"] == "the local model's mae is better"  # the greater, as it was asked for


def test_truncation_copies_the_best_and_mutates_the_copy(loops) -> None:
    loops_ = loops("tournament.strategy=truncation", "tournament.top=1", "tournament.mutation.lr=2")
    for loop, steps in zip(loops_, (30, 3, 1), strict=True):
        loop.trainer.train_steps(steps)
    ruin(loops_[2], 30.0)
    best = state_digest(loops_[0].trainer.trainee.state_dict())
    assert play(loops_[0]).get("kept") is None
    play(loops_[1])
    facts = play(loops_[2])
    assert facts["kept"] == "partner" and facts["partner"] == 0
    assert state_digest(loops_[2].trainer.trainee.state_dict()) == best
    factor = facts["mutated"]["lr"]
    assert 0.5 <= factor <= 2 and factor != 1
    loops_[2].trainer.train_steps(1)
    assert loops_[2].trainer.lr["model"] == pytest.approx(0.01 * factor)
    assert play(loops_[0], 2)["kept"] == "local"
    assert loops_[0].trainer.lr["model"] == 0.01


def test_evolution_replaces_the_oldest_by_a_mutated_copy_of_the_best_of_some(loops) -> None:
    loops_ = loops(
        "tournament.strategy=regularised_evolution", "tournament.sample=3", "tournament.mutation.lr=1.5"
    )
    for loop, steps in zip(loops_, (1, 30, 2), strict=True):
        loop.trainer.train_steps(steps)
    ruin(loops_[0], 30.0)
    for loop in (loops_[2], loops_[1]):
        play(loop)
    facts = play(loops_[0])
    assert (facts["kept"], facts["partner"]) == ("partner", 1)  # all are equally old, so the first one goes
    assert loops_[0].tournament.state_dict() == {"birth": 1}
    assert "mutated" in facts


def test_a_stop_while_a_partner_is_waited_for_leaves_the_round_to_be_played_when_the_run_goes_on(
    loops, data, tmp_path
) -> None:
    stop = StopRequest()
    (one, other) = loops("tournament.wait=5", num=2, stop=stop)
    one.trainer.train_steps(9)
    before = None

    class Asking:
        """A transport whose partner does not come, until somebody loses patience."""

        def __getattr__(self, name):
            return getattr(transport, name)

        def take(self, number, moves, limit_s):
            nonlocal before
            before = state_digest(one.trainer.state_dict())
            waiting = transport.take(number, moves, limit_s)
            next(waiting)
            stop.ask("the test")
            yield
            yield from waiting

    transport, one.tournament._transport = one.tournament._transport, Asking()
    ending = one.run()
    assert (ending.state, ending.step, ending.progress.round) == ("stopped", 10, 0)
    assert state_digest(one.trainer.state_dict()) == before
    one.tournament._transport = transport
    stop.reason = ""
    other.tournament._transport.offer(1, Summary({}, 0), other.trainer.export_state())
    other.tournament._transport.close(True)
    assert one.resume() and one.trainer.step == 10
    assert one.advance() and one.progress.round == 1
    lines = read_metrics(one.checkpoints.directory.parent / "metrics.jsonl")
    assert [line["round"] for line in lines if line["kind"] == "round"] == [1]


def test_a_run_without_a_single_round_is_refused(data, tmp_path) -> None:
    with pytest.raises(ConfigError, match=r"no round would be played: the run of 40 steps is over"):
        prepare_run(data, tmp_path / "run", "tournament.trainers=2", "tournament.interval=40")
    prepare_run(data, tmp_path / "run", "tournament.trainers=2", "tournament.interval=39")


def test_mutation_changes_all_phases_alike_and_nothing_else() -> None:
    hyper = {"lr": 0.1, "initial_lr": 0.2, "weight_decay": 0.01, "betas": (0.9, 0.99)}
    state = {"weights": {}, "optimizers": {p: {"hyper": dict(hyper), "state": {}} for p in ("a", "b")}}
    found, drawn = mutated(state, {"lr": 2.0, "weight_decay": 1.0}, 7, 3, 1)
    assert set(drawn) == {"lr"} and found["optimizers"]["a"] == found["optimizers"]["b"]
    assert found["optimizers"]["a"]["hyper"] == {
        **hyper, "lr": 0.1 * drawn["lr"], "initial_lr": 0.2 * drawn["lr"]
    }  # fmt: skip
    assert state["optimizers"]["a"]["hyper"] == hyper
    assert mutated(state, {"lr": 2.0}, 7, 3, 1)[1] == drawn != mutated(state, {"lr": 2.0}, 7, 4, 1)[1]
