"""Orders, schedules and partitions: permutations, nothing twice, nothing lost."""

from __future__ import annotations

import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.errors import UsageError
from merlin.shards.format.splits import split_indices
from merlin.train.loading.order import (
    EpochOrder,
    EpochSteps,
    Partition,
    Permutation,
    derive_seed,
    positions_of,
)

SEEDS = st.integers(0, 2**64 - 1)

GOLDEN_10 = [6, 3, 0, 5, 4, 2, 1, 7, 8, 9]
GOLDEN_10_NEXT = [3, 7, 5, 6, 9, 8, 2, 4, 0, 1]
GOLDEN_LARGE = [593814258611, 548090688261, 307350609757]
GOLDEN_SHARES = [[0, 1, 6, 7, 8, 10], [9], [2, 3, 4, 5, 11]]
GOLDEN_EQUAL = [1, 2, 4, 8]


def order_of(size: int, seed: int, epoch: int) -> np.ndarray:
    return EpochOrder(size, seed, epoch).at(np.arange(size))


@given(size=st.integers(0, 3000), seed=SEEDS, epoch=st.integers(0, 10**6))
def test_every_epoch_is_a_permutation(size, seed, epoch):
    assert sorted(order_of(size, seed, epoch)) == list(range(size))


@given(size=st.integers(1, 2**62), seed=SEEDS, data=st.data())
def test_any_position_is_evaluated_for_itself_in_any_size(size, seed, data):
    positions = data.draw(st.lists(st.integers(0, size - 1), max_size=20, unique=True))
    permutation = Permutation(size, seed)
    together = permutation.at(np.array(positions, dtype=np.int64))
    assert len(set(together.tolist())) == len(positions)
    assert all(0 <= element < size for element in together.tolist())
    assert [int(permutation.at(p)) for p in positions] == together.tolist()


def test_positions_outside_are_refused():
    with pytest.raises(IndexError, match=r"\[0, 5\)"):
        Permutation(5, 0).at([5])
    with pytest.raises(ValueError, match="cannot be made"):
        Permutation(2**62 + 1, 0)


def test_the_order_never_changes():
    """Golden values: a state saved by one version is continued by another, on any machine."""
    assert order_of(10, 0, 0).tolist() == GOLDEN_10
    assert order_of(10, 0, 1).tolist() == GOLDEN_10_NEXT
    assert EpochOrder(10**12, 7, 3).at([0, 1, 10**12 - 1]).tolist() == GOLDEN_LARGE
    assert [Partition(k, 3, 5).select(np.arange(12)).tolist() for k in range(3)] == GOLDEN_SHARES
    assert Partition(1, 3, 5, "equal").select(np.arange(12)).tolist() == GOLDEN_EQUAL


def test_another_process_finds_the_same_order():
    script = "from merlin.train.loading.order import EpochOrder; print(EpochOrder(1000, 3, 2).at(range(1000)).tolist())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(order_of(1000, 3, 2).tolist())


@pytest.mark.parametrize("size", [4, 5])
def test_all_orders_of_few_samples_are_about_equally_frequent(size):
    num = 1500
    counts = Counter(tuple(order_of(size, 11, epoch).tolist()) for epoch in range(num))
    expected = num / math.factorial(size)
    freedom = math.factorial(size) - 1
    chi_squared = sum((n - expected) ** 2 / expected for n in counts.values())
    chi_squared += expected * (freedom + 1 - len(counts))
    assert chi_squared < freedom + 4 * math.sqrt(2 * freedom)


def test_places_and_steps_of_larger_orders_look_random():
    size, num = 64, 1000
    orders = np.array([order_of(size, 1, epoch) for epoch in range(num)])
    table = np.array([np.bincount(orders[:, place], minlength=size) for place in range(size)])
    assert z_score(table, (size - 1) ** 2) < 4
    steps = np.bincount((np.diff(orders, axis=1) % size).reshape(-1), minlength=size)[1:]
    assert z_score(steps, size - 2) < 4
    fixed = (orders == np.arange(size)).sum(axis=1)
    assert abs(fixed.mean() - 1) < 4 / math.sqrt(num)
    assert abs(fixed.var() - 1) < 0.3


def z_score(counts: np.ndarray, freedom: int) -> float:
    expected = counts.mean()
    return float(((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom)


def test_epochs_and_seeds_are_unrelated():
    size = 1000
    for orders in ([order_of(size, 1, e) for e in range(30)], [order_of(size, s, 1) for s in range(30)]):
        related = np.corrcoef(np.array(orders)) - np.eye(30)
        assert np.abs(related).max() < 5 / math.sqrt(size)


def test_seeds_are_derived_from_all_parts_and_their_order():
    derived = [
        derive_seed(),
        derive_seed(0),
        derive_seed(0, 0),
        derive_seed(1, 2),
        derive_seed(2, 1),
        derive_seed(3),
    ]
    assert len(set(derived)) == len(derived)
    assert derive_seed(-1) == derive_seed(2**64 - 1)


schedules = st.builds(
    EpochSteps,
    size=st.integers(0, 400),
    batch_size=st.integers(1, 50),
    world_size=st.integers(1, 7),
    drop_last=st.just(False),
    pad_last=st.booleans(),
)


def taken(schedule: EpochSteps, consumed: int = 0, steps: int | None = None) -> tuple[list[int], int]:
    """Positions that all ranks take, step by step, without padding; and how many are consumed then."""
    positions: list[int] = []
    for number in range(schedule.num_steps(consumed)):
        if number == steps:
            break
        ranks = [schedule.step(consumed, rank) for rank in range(schedule.world_size)]
        assert len({(step.lo, step.hi) for step in ranks}) == 1
        for step in ranks:
            valid = step.num_valid(schedule.size)
            positions += positions_of([step], schedule.size)[:valid].tolist()
        consumed = ranks[0].hi
    return positions, consumed


@given(schedule=schedules)
def test_every_position_is_taken_by_exactly_one_rank(schedule):
    positions, consumed = taken(schedule)
    assert sorted(positions) == list(range(schedule.size))
    assert consumed == schedule.size
    assert all(schedule.step(consumed, rank) is None for rank in range(schedule.world_size))


@given(schedule=schedules, drop=st.booleans())
def test_batches_are_whole_but_for_the_last(schedule, drop):
    if drop:
        schedule = EpochSteps(schedule.size, schedule.batch_size, schedule.world_size, drop_last=True)
    for rank in range(schedule.world_size):
        steps = list(schedule.steps(0, rank))
        assert len(steps) == schedule.num_steps()
        whole = steps if drop or schedule.pad_last else steps[:-1]
        assert all(
            step.num == len(positions_of([step], schedule.size)) == schedule.batch_size for step in whole
        )


@given(schedule=schedules)
def test_the_last_step_is_divided_evenly(schedule):
    last = [step for rank in range(schedule.world_size) for step in list(schedule.steps(0, rank))[-1:]]
    nums = [step.num for step in last]
    assert not nums or max(nums) - min(nums) <= 1


@given(
    schedule=schedules,
    others=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 7)), max_size=3),
    data=st.data(),
)
def test_an_epoch_begun_by_some_ranks_is_finished_by_others(schedule, others, data):
    """Nothing twice and nothing lost, whatever the world size and batch size after each resume."""
    positions: list[int] = []
    consumed = 0
    for batch_size, world_size in others:
        part = EpochSteps(schedule.size, batch_size, world_size, pad_last=schedule.pad_last)
        more, consumed = taken(part, consumed, steps=data.draw(st.integers(0, 4)))
        positions += more
    more, _ = taken(schedule, consumed)
    assert sorted(positions + more) == list(range(schedule.size))


def test_contradictions_are_refused():
    with pytest.raises(UsageError, match="at least 1"):
        EpochSteps(10, 0)
    with pytest.raises(UsageError, match="not both"):
        EpochSteps(10, 2, drop_last=True, pad_last=True)
    with pytest.raises(UsageError, match="numbered from 0"):
        Partition(3, 3)
    with pytest.raises(UsageError, match=r"\[0, 1\)"):
        Partition(0, 3, tournament_fraction=1.0)


@given(
    num=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    ids=st.lists(st.integers(0, 500), max_size=200),
    method=st.sampled_from(["hash", "equal"]),
    fraction=st.floats(0, 0.9),
)
def test_shares_are_disjoint_and_cover_everything(num, seed, ids, method, fraction):
    ids = np.array(ids, dtype=np.int64)
    seen: list[int] = []
    for k in range(num):
        share = Partition(k, num, seed, method, tournament_fraction=fraction)
        parts = [Partition(k, num, seed, method, part, fraction) for part in ("train", "tournament")]
        members = [part.select(ids).tolist() for part in parts]
        assert sorted(members[0] + members[1]) == share.select(ids).tolist()
        seen += members[0] + members[1]
    assert sorted(seen) == list(range(len(ids)))


def test_a_hashed_share_keeps_its_samples_when_others_are_added():
    few, many = np.arange(0, 1000), np.arange(0, 1500)
    before = Partition(2, 4, seed=1, part="train", tournament_fraction=0.2).select(few)
    after = Partition(2, 4, seed=1, part="train", tournament_fraction=0.2).select(many)
    assert after[after < 1000].tolist() == before.tolist()


def test_rows_of_one_sample_stay_in_one_hashed_share():
    ids = np.repeat(np.arange(50), 3)
    for k in range(4):
        assert set(Counter(ids[Partition(k, 4).select(ids)].tolist()).values()) <= {3}


def test_equal_shares_differ_by_one_at_most():
    sizes = [len(Partition(k, 7, 3, "equal").select(np.arange(1000))) for k in range(7)]
    assert max(sizes) - min(sizes) <= 1


def test_shares_are_unrelated_to_splits_of_the_same_seed():
    ids = np.arange(40_000)
    split = split_indices(ids, {"train": 0.5, "test": 0.5}, 9)
    in_share = np.zeros(len(ids), dtype=bool)
    in_share[Partition(0, 2, seed=9).select(ids)] = True
    in_tournament = np.zeros(len(ids), dtype=bool)
    for k in range(2):
        in_tournament[Partition(k, 2, 9, part="tournament", tournament_fraction=0.5).select(ids)] = True
    related = np.corrcoef([split, in_share, in_tournament]) - np.eye(3)
    assert np.abs(related).max() < 5 / math.sqrt(len(ids))
