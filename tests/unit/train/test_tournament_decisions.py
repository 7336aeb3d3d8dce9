"""Pairing, deciding, copying and mutating: everybody finds the same for himself."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import UsageError
from merlin.train.tournament.decisions import DecidingMetric, decide, rank
from merlin.train.tournament.mutation import drawn_factor
from merlin.train.tournament.strategies import pairs, regularised_evolution, truncation

SEEDS = st.integers(0, 2**64 - 1)
ROUNDS = st.integers(0, 10**6)
TRAINERS = st.lists(st.integers(0, 200), min_size=1, max_size=20, unique=True)
NUMBERS = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(-1e6, 1e6)
GOLDEN = [(6, 3), (4, 1), (5, 0), (2, 2)]
GOLDEN_FACTOR = 0.9060904694256647
METRICS = (DecidingMetric("loss"), DecidingMetric("accuracy", "max"), DecidingMetric("fidelity"))


# pairing


@given(seed=SEEDS, number=ROUNDS, trainers=TRAINERS)
def test_everybody_is_in_exactly_one_pair(seed, number, trainers):
    met = pairs(seed, number, trainers)
    alone = [pair for pair in met if pair[0] == pair[1]]
    assert len(alone) == len(trainers) % 2
    assert sorted({t for pair in met for t in pair}) == sorted(trainers)
    assert 2 * len(met) - len(alone) == len(trainers)


def partner_of(trainer: int, seed: int, number: int, trainers) -> int:
    (pair,) = (pair for pair in pairs(seed, number, trainers) if trainer in pair)
    return pair[1] if pair[0] == trainer else pair[0]


@given(seed=SEEDS, number=ROUNDS, trainers=TRAINERS, data=st.data())
def test_partners_agree_whatever_order_they_know_each_other_in(seed, number, trainers, data):
    for trainer in trainers:
        mine = partner_of(trainer, seed, number, trainers)
        assert partner_of(mine, seed, number, data.draw(st.permutations(trainers))) == trainer


def test_pairs_never_change():
    assert pairs(1, 0, range(7)) == GOLDEN
    script = "from merlin.train.tournament.strategies import pairs; print(pairs(1, 0, range(7)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(GOLDEN)


def test_all_partners_are_about_equally_frequent():
    num = 1000
    met = Counter(partner_of(0, 3, number, range(6)) for number in range(num))
    assert set(met) == {1, 2, 3, 4, 5}
    assert sum((n - num / 5) ** 2 / (num / 5) for n in met.values()) < 25
    left_over = Counter(pairs(3, number, range(5))[-1][0] for number in range(num))
    assert sum((n - num / 5) ** 2 / (num / 5) for n in left_over.values()) < 25


# deciding


def scores(loss: float, accuracy: float = 0.5, fidelity: float = 0.0) -> dict[str, float]:
    return {"loss": loss, "accuracy": accuracy, "fidelity": fidelity}


@pytest.mark.parametrize(
    ("local", "partner", "kept", "reason"),
    [
        (scores(1.0), scores(2.0), "local", "loss is better"),
        (scores(2.0), scores(1.0), "partner", "the partner's loss is better"),
        (scores(1.0), scores(1.0), "local", "loss is equal"),
        (scores(math.nan), scores(9.0), "partner", "the local model's loss is not finite"),
        (scores(math.inf), scores(9.0), "partner", "not finite"),
        (scores(-math.inf), scores(9.0), "partner", "not finite"),
        (scores(9.0), scores(math.nan), "local", "the partner's loss is not finite"),
        (scores(9.0), scores(-math.inf), "local", "not finite"),
        (scores(math.nan), scores(math.inf), "local", "and the local model's is not finite"),
    ],
)
def test_one_metric_decides(local, partner, kept, reason):
    found = decide(local, partner, METRICS[:1])
    assert found.kept == kept
    assert reason in found.reason


@given(local=FINITE, partner=FINITE)
def test_the_direction_says_what_is_better(local, partner):
    higher = decide({"accuracy": local}, {"accuracy": partner}, METRICS[1:2])
    assert (higher.kept == "partner") == (partner > local)


@given(mine=st.tuples(FINITE, FINITE, FINITE), theirs=st.tuples(FINITE, FINITE, FINITE))
def test_a_partner_has_to_win_by_every_metric(mine, theirs):
    wins = [theirs[0] < mine[0], theirs[1] > mine[1], theirs[2] < mine[2]]
    assert (decide(scores(*mine), scores(*theirs), METRICS).kept == "partner") == all(wins)


@given(mine=st.tuples(NUMBERS, NUMBERS, NUMBERS), theirs=st.tuples(NUMBERS, NUMBERS, NUMBERS))
def test_what_is_not_finite_is_kept_only_against_its_like(mine, theirs):
    kept = decide(scores(*mine), scores(*theirs), METRICS).kept
    sound_mine, sound_theirs = (all(map(math.isfinite, found)) for found in (mine, theirs))
    if sound_mine != sound_theirs:
        assert kept == ("local" if sound_mine else "partner")
    elif not sound_mine:
        assert kept == "local"


@given(mine=st.tuples(FINITE, FINITE, FINITE), theirs=st.tuples(FINITE, FINITE, FINITE))
def test_two_partners_never_both_give_their_model_up_on_the_same_samples(mine, theirs):
    decisions = (
        decide(scores(*mine), scores(*theirs), METRICS),
        decide(scores(*theirs), scores(*mine), METRICS),
    )
    assert [d.kept for d in decisions] != ["partner", "partner"]


def test_a_metric_that_the_model_lacks_is_named():
    with pytest.raises(UsageError, match=r"no metric 'fidelity' .* has: loss"):
        decide({"loss": 1.0}, {"loss": 1.0}, METRICS[2:])


def test_ranking_goes_by_the_first_metric_then_the_next_then_the_number():
    found = {
        5: scores(1.0, 0.5), 4: scores(1.0, 0.9), 3: scores(math.nan), 2: scores(0.5), 1: scores(1.0, 0.5),
    }  # fmt: skip
    assert rank(found, METRICS[:2]) == [2, 4, 1, 5, 3]


# truncation


@given(losses=st.dictionaries(st.integers(0, 30), NUMBERS, min_size=1, max_size=12), top=st.integers(1, 5))
def test_truncation_replaces_all_but_the_best_in_turns(losses, top):
    found = {trainer: {"loss": loss} for trainer, loss in losses.items()}
    copies = truncation(found, METRICS[:1], top)
    ranking = rank(found, METRICS[:1])
    kept = [t for t in ranking[:top] if math.isfinite(losses[t])]
    assert set(copies.values()) <= set(kept), "only sound models of the best are copied"
    assert set(copies) == (set(losses) - set(kept) if kept else set())
    if copies:
        times = Counter(copies.values())
        assert max(times.values()) - min(times.get(t, 0) for t in kept) <= 1, "in turns"


def test_the_trainer_on_place_r_copies_the_one_on_place_r_modulo_top():
    found = {trainer: {"loss": float(10 - trainer)} for trainer in range(7)}
    assert truncation(found, METRICS[:1], 2) == {4: 6, 3: 5, 2: 6, 1: 5, 0: 6}


# evolution


@given(
    seed=SEEDS,
    number=ROUNDS,
    population=st.dictionaries(
        st.integers(0, 30), st.tuples(st.integers(0, 9), NUMBERS), min_size=1, max_size=12
    ),
    sample=st.integers(1, 15),
)
def test_the_best_of_a_sample_replaces_the_oldest(seed, number, population, sample):
    births = {trainer: born for trainer, (born, _) in population.items()}
    found = {trainer: {"loss": loss} for trainer, (_, loss) in population.items()}
    copies = regularised_evolution(seed, number, births, found, METRICS[:1], sample)
    sound = [trainer for trainer in births if math.isfinite(found[trainer]["loss"])]
    if not copies:
        assert sample < len(births) or not sound
        return
    ((copy, original),) = copies.items()
    assert copy == min(births, key=lambda t: (births[t], t))
    assert original in sound
    if sample >= len(births):
        assert original == rank(found, METRICS[:1])[0]
    backwards = dict(reversed(births.items()))
    assert regularised_evolution(seed, number, backwards, found, METRICS[:1], sample) == copies


def test_evolution_samples_everybody_in_turn():
    births = dict.fromkeys(range(6), 0)
    found = {trainer: {"loss": 1.0} for trainer in births}
    parents = Counter(
        original
        for n in range(600)
        for original in regularised_evolution(1, n, births, found, METRICS[:1], 1).values()
    )
    assert set(parents) == set(births)
    assert sum((n - 100) ** 2 / 100 for n in parents.values()) < 25
    assert regularised_evolution(1, 0, {3: 0}, {3: {"loss": 1.0}}, METRICS[:1], 4) == {3: 3}


# mutation


@given(factor=st.floats(1, 10), seed=SEEDS, number=ROUNDS, trainer=st.integers(0, 1000))
def test_a_mutation_stays_within_its_factor(factor, seed, number, trainer):
    drawn = drawn_factor("lr", factor, seed, number, trainer)
    assert 1 / factor * (1 - 1e-9) <= drawn <= factor * (1 + 1e-9)
    assert drawn_factor("lr", factor, seed, number, trainer) == drawn


def test_mutations_never_change():
    assert drawn_factor("weight_decay", 2.0, 7, 3, 1) == pytest.approx(GOLDEN_FACTOR, rel=1e-15)


def test_mutations_of_trainers_rounds_and_names_are_unrelated_and_even():
    places = [(number, trainer) for number in range(50) for trainer in range(20)]
    names = ("lr", "a rather long name of a parameter")
    logs, others = ([math.log2(drawn_factor(name, 2.0, 1, *place)) for place in places] for name in names)
    assert len(set(logs)) == len(logs)
    assert not set(logs) & set(others)
    assert abs(sum(logs) / len(logs)) < 0.1
    assert sum(x > 0.5 for x in logs) == pytest.approx(250, abs=60)
