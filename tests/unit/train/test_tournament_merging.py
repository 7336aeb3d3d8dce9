"""Means of models: who counts, what is averaged, when rounds come, and rounds with real models."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from open_loops import loops_of
from surrogate_data import make_surrogate_data
from train_run import prepare_run, state_digest

from merlin.errors import ConfigError, TrainingError
from merlin.train.config_defaults import first_beta, lr_scale, with_defaults
from merlin.train.config_file import parse_config
from merlin.train.flat import flat, replaced
from merlin.train.metrics_log import read_metrics
from merlin.train.tournament.averaging import BEHIND, Total, mean_of_both, who_counts
from merlin.train.tournament.decisions import DecidingMetric, decide, decide_merged
from merlin.train.tournament.timing import Timing, rounds_per_checkpoint

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
TRIPLES = st.tuples(NUMBERS, NUMBERS, NUMBERS)
LOSS = (DecidingMetric("loss"),)
AVERAGING = ("tournament={trainers: 3, strategy: averaging, interval: 10, interval_end: 2, wait: 0}",)
MINIMAL = "data: d\nmodel: {name: regressor}\n"


# when


@given(interval=st.integers(1, 60), last=st.integers(1, 60) | st.none(), num_steps=st.integers(1, 2000))
def test_rounds_come_at_intervals_that_shrink_to_the_last_one(interval, last, num_steps) -> None:
    last = None if last is None else min(last, interval)
    timing = Timing(interval, last, num_steps)
    steps = [0]
    while timing.following(steps[-1]) <= timing.final:
        steps.append(timing.following(steps[-1]))
    gaps = [after - before for before, after in pairwise(steps)]
    if last is None:
        assert steps[1:] == list(range(interval, num_steps, interval))
        return
    assert steps[-1] == num_steps
    assert all(last <= gap <= interval for gap in gaps[:-1]) and 0 < gaps[-1] <= interval
    assert gaps[:-1] == sorted(gaps[:-1], reverse=True)


def test_all_trainers_save_after_the_same_rounds_and_not_after_each_frequent_one() -> None:
    def per_checkpoint(*words: str) -> int:
        return rounds_per_checkpoint(parse_config(MINIMAL, "c.yaml", words).config)

    averaging = ("tournament.trainers=2", "tournament.strategy=averaging", "tournament.interval=10")
    assert per_checkpoint(*averaging) == 50
    assert per_checkpoint(*averaging, "training.checkpoint_every=25") == 3
    assert per_checkpoint("tournament.trainers=2", "tournament.interval=10") == 1


# who and what


@given(rounds=st.dictionaries(st.integers(0, 30), st.integers(0, 40), min_size=1))
def test_models_that_are_far_behind_do_not_count(rounds) -> None:
    counted = who_counts(rounds)
    assert counted == sorted(counted) and counted
    newest = max(rounds.values())
    assert {k for k, number in rounds.items() if newest - number <= BEHIND} == set(counted)


def state(values, moments=None, count: int = 3) -> dict:
    weights = {
        "b": torch.tensor(values, dtype=torch.float32),
        "a": torch.ones(2, 2),
        "n": torch.tensor(count),
    }
    of = {} if moments is None else {"b": {"exp_avg": torch.tensor(moments), "step": torch.tensor(5.0)}}
    optimizers = {"model": {"hyper": {"lr": 0.1 * count}, "state": of}}
    return {"capacity": None, "weights": weights, "average": {}, "optimizers": optimizers, "bad_steps": count}


VECTORS = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=1, max_size=6)


@given(vectors=VECTORS)
def test_weights_and_moments_are_averaged_and_the_rest_stays(vectors) -> None:
    total = Total()
    for trainer, values in enumerate(vectors):
        total.add(trainer, flat(state(values, values[::-1], trainer)))
    own = state(vectors[0], vectors[0], 7)
    found = total.mean()
    mean = np.mean(np.array(vectors, np.float64), axis=0)
    assert found.trainers == tuple(range(len(vectors)))
    made = replaced(own, found.values)
    assert np.allclose(made["weights"]["b"], mean, atol=1e-3)
    assert np.allclose(made["optimizers"]["model"]["state"]["b"]["exp_avg"], mean[::-1], atol=1e-3)
    assert made["weights"]["n"] == 7 and made["bad_steps"] == 7
    assert made["optimizers"]["model"]["hyper"] == own["optimizers"]["model"]["hyper"]
    assert state_digest(own) == state_digest(state(vectors[0], vectors[0], 7))


def test_who_is_not_finite_or_has_made_no_step_gets_the_mean_of_the_others() -> None:
    sound = state([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    for bad in (state([1.0, math.nan, 3.0], [1.0, 1.0, 1.0]), state([9.0, 9.0, 9.0])):
        total = Total()
        for trainer, each in enumerate((sound, bad, sound)):
            total.add(trainer, flat(each))
        found = total.mean()
        assert found.trainers == (0, 2)
        assert replaced(bad, found.values)["weights"]["b"].tolist() == [1.0, 2.0, 3.0]
        assert mean_of_both({0: sound, 1: bad}, own=1) is None
    total = Total()
    total.add(0, flat(state([math.inf, 0.0, 0.0])))
    assert total.mean() is None


def test_a_mean_of_other_models_is_refused() -> None:
    own = state([1.0, 2.0, 3.0], [1.0, 1.0, 1.0])
    for wrong in (torch.zeros(3), torch.zeros(50)):
        with pytest.raises(TrainingError, match=r"the models that were averaged have"):
            replaced(own, wrong)


# deciding among three


@given(losses=TRIPLES)
def test_the_mean_of_two_is_kept_if_it_beats_the_better_one(losses) -> None:
    local, partner, merged = ({"loss": value} for value in losses)
    found, first = decide_merged(local, partner, merged, LOSS), decide(local, partner, LOSS)
    best = losses[0] if first.kept == "local" else losses[1]
    wins = math.isfinite(losses[2]) and (losses[2] < best or not math.isfinite(best))
    assert found.kept == ("merged" if wins else first.kept)
    if not wins:
        assert found == first


# the rule


def resolved(num_samples: int, *words: str, phases: int = 1):
    config = parse_config(MINIMAL, "c.yaml", ["tournament.trainers=8", *words]).config
    return with_defaults(config, num_samples, phases)


def test_the_strategy_follows_the_size_of_a_share() -> None:
    large, middle, small = (resolved(8 * share) for share in (16_000, 1_000, 999))
    assert large.averages and large.schedule.name == "cosine"
    assert large.tournament.lr_scale == lr_scale(8) > lr_scale(4) == 4 > lr_scale(2) == 2
    assert lr_scale(1000) == 8
    assert (middle.tournament.strategy, middle.tournament.merge) == ("random_pairwise", True)
    assert middle.tournament.tournament_fraction == 0.1  # 100 samples
    assert (small.tournament.strategy, small.tournament.merge) == ("random_pairwise", False)
    assert large.merges and middle.merges and not small.merges
    assert not resolved(10**6, phases=2).merges  # adversaries


def test_moments_of_adam_outlast_the_interval_unless_the_run_is_short() -> None:
    assert [first_beta(interval, 12_000) for interval in (1, 10, 25, 50, 100)] == [
        0.98,
        0.98,
        0.98,
        0.99,
        0.995,
    ]
    assert first_beta(500, 12_000) == 0.9  # nothing would last that long
    assert [first_beta(10, steps) for steps in (300, 600, 1_200, 3_000)] == [0.9, 0.9, 0.95, 0.98]
    near = resolved(10**6, "tournament.transport=process_group", "training.steps=10000")
    assert near.optimizer.betas == (0.98, 0.999)
    assert resolved(10**6, "training.steps=10000").optimizer.betas == (
        0.994,
        0.999,
    )  # over files, every 100 steps
    merging = ("tournament.merge=true", "training.steps=10000")
    assert resolved(10**6, *merging).optimizer.betas == (0.9, 0.999)
    assert resolved(10**6, *merging, "tournament.interval=50").optimizer.betas == (0.99, 0.999)
    own = resolved(10**6, "training.steps=10000", "optimizer.betas=[0.8, 0.99]")
    assert own.optimizer.betas == (0.8, 0.99)
    adversaries = ("tournament.strategy=averaging", "training.steps=10000")
    assert resolved(10**6, *adversaries, phases=2).optimizer.betas == (0.9, 0.999)


def test_what_is_written_stays() -> None:
    kept = resolved(10**6, "tournament.strategy=random_pairwise")
    assert (
        kept
        == parse_config(
            MINIMAL, "c.yaml", ["tournament.trainers=8", "tournament.strategy=random_pairwise"]
        ).config
    )
    assert "merge" not in kept.to_json()["tournament"]  # as in runs that began before there was one
    near = resolved(10**6, "tournament.transport=process_group").tournament
    assert (near.interval, near.interval_end) == (5, 5)
    far = resolved(10**6, "tournament.interval=5").tournament
    assert (far.interval, far.interval_end) == (5, 5)  # the usual end is above it
    own = resolved(100, "tournament.strategy=averaging", "tournament.lr_scale=1", "schedule.name=constant")
    assert own.averages and own.tournament.lr_scale == 1 and own.schedule.name == "constant"
    assert resolved(10**6, "tournament.strategy=none").tournament.lr_scale is None
    merging = resolved(10**6, "tournament.merge=true")
    assert merging.tournament.tournament_fraction == 1000 / (10**6 / 8)
    held = resolved(10**6, "tournament.merge=true", "tournament.tournament_fraction=0.1")
    assert held.tournament.tournament_fraction == 0.1
    assert merging.tournament.strategy == "random_pairwise" and merging.merges


def test_a_rule_that_was_applied_is_applied_again_without_a_change() -> None:
    for share in (16_000, 1_000, 10):
        once = resolved(8 * share)
        text = json.dumps(once.to_json())
        assert with_defaults(parse_config(text, "config.yaml").config, 10, 1).digest == once.digest


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["tournament.strategy=truncation", "tournament.merge=true"], "merge goes with random_pairwise"),
        (["tournament.strategy=none", "tournament.interval_end=2"], "interval_end goes with averaging"),
        (["tournament.interval=5", "tournament.interval_end=6"], "interval_end is above the interval"),
    ],
)
def test_keys_that_do_not_go_together_are_refused(words, message) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(MINIMAL, "c.yaml", words)


# rounds


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_surrogate_data(tmp_path_factory.mktemp("surrogate"))


@pytest.fixture
def loops(data, tmp_path):
    with loops_of(data, tmp_path / "run", "training.steps=100") as opened:
        yield opened


def play(loop, number: int = 1) -> dict:
    return loop.tournament.play(loop.trainer, number)


def exported(loop) -> dict:
    return loop.trainer.export_state()


def test_all_begin_as_one_model_and_see_their_samples_in_orders_of_their_own(loops) -> None:
    one, other, _ = loops(*AVERAGING)
    assert state_digest(exported(one)) == state_digest(exported(other))
    assert one.trainer.loader.seed != other.trainer.loader.seed
    one.trainer.train_steps(1)
    other.trainer.train_steps(1)
    assert state_digest(exported(one)) != state_digest(exported(other))


def test_a_round_makes_one_model_of_all(loops) -> None:
    *some, last = loops(*AVERAGING, "training.ema=0.5")
    for loop in (*some, last):
        loop.trainer.train_steps(4)
    parts = [exported(loop) for loop in (*some, last)]
    for loop in some:
        play(loop)
    before = exported(some[0])
    facts = play(last)
    assert facts == {"partners": [0, 1], "kept": "merged"}
    assert last.tournament.take_seconds()["evaluation_s"] == 0.0
    total = Total()
    for k, of in enumerate(parts):
        total.add(k, flat(of))
    assert torch.equal(flat(exported(last)), total.mean().values)
    assert torch.equal(last.trainer.values(), total.mean().values)
    assert any("num_batches_tracked" in name for name in exported(last)["weights"])  # whole numbers
    assert state_digest(exported(some[0])) == state_digest(before)


def test_a_model_that_is_no_number_is_replaced_by_the_mean_of_the_others(loops) -> None:
    one, other, ruined = loops(*AVERAGING)
    for loop in (one, other, ruined):
        loop.trainer.train_steps(2)
    with torch.no_grad():
        next(iter(ruined.trainer.trainee.parameters())).fill_(math.nan)
    play(one)
    play(other)
    assert play(ruined) == {"partners": [0, 1], "kept": "merged"}
    assert math.isfinite(ruined.trainer.evaluate(ruined.validation)["loss"])
    play(ruined, 2)
    assert play(one, 2)["partners"] == [1, 2]


def test_who_comes_late_takes_the_mean_of_those_who_are_ahead(loops) -> None:
    one, other, late = loops(*AVERAGING)
    for number in range(1, BEHIND + 3):
        for loop in (one, other):
            loop.trainer.train_steps(1)
            play(loop, number)
    late.trainer.train_steps(1)
    assert play(late, 1)["partners"] == [0, 1]
    assert play(one, BEHIND + 3)["partners"] == [1]  # who is far behind does not count


def test_adversaries_stay_with_their_trainers(loops, data, tmp_path) -> None:
    gan = ("model.name=tiny_models:Gan", *AVERAGING)
    with pytest.raises(ConfigError, match=r"trains discriminator and generator against each other"):
        prepare_run(data, tmp_path / "refused", *gan)
    one, other, _ = loops(
        *gan, "tournament.exchange=[generators]", "optimizer.lr=0.01", "tournament.lr_scale=3"
    )
    assert other.trainer.lr == pytest.approx({"discriminator": 0.01, "generator": 0.03})
    for loop in (one, other):
        loop.trainer.train_steps(3)
    own = state_digest(other.trainer.trainee.discriminator.state_dict())
    play(one)
    assert play(other)["kept"] == "merged"
    assert state_digest(other.trainer.trainee.discriminator.state_dict()) == own


def test_a_run_ends_with_a_round_and_tells_only_of_some(loops) -> None:
    (one,) = loops(*AVERAGING, "training.steps=37", num=1)
    ending = one.run()
    timing = Timing(10, 2, 37)
    steps = [timing.following(0)]
    while steps[-1] < 37:
        steps.append(timing.following(steps[-1]))
    assert (ending.step, ending.progress.round, ending.progress.common_round) == (37, len(steps), len(steps))
    lines = read_metrics(one.checkpoints.directory.parent / "metrics.jsonl")
    rounds = [line for line in lines if line["kind"] == "round"]
    assert [line["step"] for line in rounds] == steps  # nobody else is there, which is worth telling
    assert all(line["partners"] == [] for line in rounds)


MERGING = ("tournament={trainers: 2, interval: 10, wait: 0, merge: true}",)


def test_the_mean_of_two_is_kept_where_it_is_better_than_both(loops) -> None:
    one, other = loops(*MERGING, "model.name=regressor", num=2)
    for loop in (one, other):
        loop.trainer.train_steps(20)
    states = [exported(loop) for loop in (one, other)]
    away = {k: v * 0.3 for k, v in states[0]["weights"].items()}
    for sign, loop, of in (
        (1, one, states[0]),
        (-1, other, states[0]),
    ):  # their mean is the first one's model
        weights = {k: v + sign * away[k] for k, v in of["weights"].items()}
        loop.trainer.import_state({**of, "weights": weights})
    play(one)
    facts = play(other)
    assert facts["kept"] == "merged" and "the loss of the mean of both is better" in facts["reason"]
    scores = facts["scores"]
    assert scores["merged"]["loss"] < min(scores["local"]["loss"], scores["partner"]["loss"])
    assert torch.allclose(flat(exported(other)), flat(states[0]), atol=1e-5)


def test_the_mean_of_two_is_left_where_it_is_worse(loops) -> None:
    one, other = loops(*MERGING, "model.name=regressor", num=2)
    other.trainer.train_steps(30)
    with torch.no_grad():
        for parameter in one.trainer.trainee.parameters():
            parameter.mul_(30.0)
    one.trainer.train_steps(1)
    play(one)
    before = state_digest(other.trainer.state_dict())
    assert play(other)["kept"] == "local"
    assert state_digest(other.trainer.state_dict()) == before
    assert play(one, 2)["kept"] == "partner"
    assert torch.equal(flat(exported(one)), flat(exported(other)))
