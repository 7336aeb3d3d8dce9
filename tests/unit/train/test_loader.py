"""The loader in one process: order, ranks, resuming, the life of a batch."""

from __future__ import annotations

import gc
import json
import os
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st
from train_study import IDS, make_data

import merlin
from merlin.errors import LoaderError, ShardError, UsageError
from merlin.train import ShardDataset, ShardLoader
from merlin.train.loading.order import EpochOrder

pytestmark = pytest.mark.usefixtures("garbage_of_others")

NUM = len(IDS)


@pytest.fixture(scope="module")
def dataset(data) -> Iterator[ShardDataset]:
    with merlin.open_shards(data) as ensemble:
        yield ShardDataset(ensemble, ["label", "image"])


@pytest.fixture(scope="module")
def everything(data) -> ShardDataset:
    return ShardDataset(
        data, stack_scalars=True, layout="chw", normalise={"inputs": "minmax", "image": "standard"}
    )


def ids_of(batch: dict[str, torch.Tensor]) -> list[int]:
    return (batch["inputs"][:, 0] / 2).to(torch.int64).tolist()


def epoch_of(loader: ShardLoader) -> list[list[int]]:
    return [ids_of(batch) for batch in loader]


@pytest.fixture
def reading_threads() -> Callable[[], list[threading.Thread]]:
    """Lists the threads that read for the loaders of this test; what tests before it left is not its business."""
    before = set(threading.enumerate())
    return lambda: [t for t in threading.enumerate() if t.name == "merlin-loader" and t not in before]


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_batches_are_what_the_data_set_has_in_the_epochs_order(everything, prefetch):
    loader = ShardLoader(everything, 8, seed=3, prefetch=prefetch)
    for epoch in range(3):
        order = EpochOrder(NUM, 3, epoch).at(np.arange(NUM))
        assert loader.epoch == epoch
        for number, batch in enumerate(loader):
            expected = everything[order[8 * number : 8 * number + 8]]
            assert list(batch) == list(expected)
            for key, values in batch.items():
                assert values.dtype == expected[key].dtype
                assert torch.equal(values, expected[key])
        assert number + 1 == len(loader) == 8


def test_without_shuffling_the_order_ascends(dataset):
    assert np.concatenate(epoch_of(ShardLoader(dataset, 10, shuffle=False))).tolist() == IDS.tolist()


@settings(max_examples=repeats(12, 250), deadline=None)
@given(
    batch_size=st.integers(1, 70), world_size=st.integers(1, 5), pad=st.booleans(), seed=st.integers(0, 99)
)
def test_ranks_share_every_epoch_without_a_sample_twice(dataset, batch_size, world_size, pad, seed):
    seen: list[int] = []
    lengths = set()
    for rank in range(world_size):
        loader = ShardLoader(
            dataset, batch_size, seed=seed, rank=rank, world_size=world_size, pad_last=pad, prefetch=0
        )
        lengths.add(len(loader))
        for batch in loader:
            valid = batch["valid"].tolist() if pad else [True] * len(batch["label"])
            assert not pad or len(valid) == batch_size
            seen += [sample for sample, counts in zip(ids_of(batch), valid, strict=True) if counts]
    assert sorted(seen) == IDS.tolist()
    assert len(lengths) == 1


def test_the_last_batch_may_be_dropped(dataset):
    batches = epoch_of(ShardLoader(dataset, 10, rank=1, world_size=2, drop_last=True))
    assert [len(batch) for batch in batches] == [10, 10]


@settings(max_examples=repeats(12, 250), deadline=None)
@given(data=st.data())
def test_resuming_continues_exactly_even_onto_another_world_size(dataset, data):
    """The samples after each resume are those that an uninterrupted epoch has at these places."""
    expected = np.concatenate(epoch_of(ShardLoader(dataset, 7, seed=5, prefetch=0))).tolist()
    state = None
    seen: list[int] = []
    while True:
        world_size, batch_size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 20))
        stop_after = data.draw(st.integers(1, 4))
        ranks = [
            ShardLoader(dataset, batch_size, seed=5, rank=rank, world_size=world_size, prefetch=rank)
            for rank in range(world_size)
        ]
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        running = [iter(loader) for loader in ranks]
        for _ in range(stop_after):
            for iterator in running:
                seen += ids_of(next(iterator, {"inputs": torch.zeros(0, 2)}))
        state = ranks[0].state_dict()
        assert all(loader.state_dict() == state for loader in ranks)
        if state["epoch"] == 1:
            break
    assert seen == expected


def test_a_state_is_of_what_was_handed_out_not_of_what_was_read_ahead(dataset):
    loader = ShardLoader(dataset, 4, seed=1, prefetch=5)
    iterator = iter(loader)
    first = [ids_of(next(iterator)) for _ in range(3)]
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (0, 12)
    rest = [ids_of(batch) for batch in iterator]
    other = ShardLoader(dataset, 4, seed=1)
    assert [*first, *rest] == epoch_of(other)
    other.load_state_dict(state)
    assert epoch_of(other) == rest


def test_a_loop_that_is_left_early_is_continued_by_the_next(dataset):
    loader, whole = ShardLoader(dataset, 8, seed=2), ShardLoader(dataset, 8, seed=2)
    expected = [*epoch_of(whole), *epoch_of(whole)]
    seen = []
    while len(seen) < len(expected):
        for batch in loader:
            seen.append(ids_of(batch))
            if len(seen) % 3 == 0:
                break
    assert seen == expected
    assert loader.state_dict() == whole.state_dict() or loader.consumed == NUM


def test_epochs_may_be_set(dataset):
    loader = ShardLoader(dataset, 8, seed=2)
    epochs = [epoch_of(loader) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    loader.set_epoch(1)
    assert epoch_of(loader) == epochs[1]
    iterator = iter(loader)
    assert [ids_of(next(iterator)) for _ in range(2)] == epochs[2][:2]
    loader.set_epoch(2)  # where it is already, as after load_state_dict
    assert epoch_of(loader) == epochs[2][2:]
    loader.seek(0, 16)
    assert epoch_of(loader) == epochs[0][2:]
    with pytest.raises(UsageError, match="no sample 58 of 57 in epoch 0"):
        loader.seek(0, 58)


def test_states_of_other_splits_are_refused(data, tmp_path):
    other = make_data(tmp_path / "w", seed=9)
    before, now = (ShardLoader(ShardDataset(path, split="train"), 4, seed=1) for path in (data, other))
    assert before.dataset.ens.manifest.content_digest == now.dataset.ens.manifest.content_digest
    with pytest.raises(LoaderError, match="other samples"):
        now.load_state_dict(before.state_dict())
    before.load_state_dict({**before.state_dict(), "samples": before.dataset.earlier_fingerprint})


def test_states_of_other_samples_or_orders_are_refused(dataset, data):
    state = ShardLoader(dataset, 4, seed=1).state_dict()
    with pytest.raises(LoaderError, match="seed=1"):
        ShardLoader(dataset, 4, seed=2).load_state_dict(state)
    with pytest.raises(LoaderError, match="other samples"):
        ShardLoader(ShardDataset(data, split="train"), 4, seed=1).load_state_dict(state)
    with pytest.raises(LoaderError, match="shuffle=True"):
        ShardLoader(dataset, 4, seed=1, shuffle=False).load_state_dict(state)
    with pytest.raises(LoaderError, match="not a state of a loader"):
        ShardLoader(dataset, 4).load_state_dict({})
    with pytest.raises(LoaderError, match="not a state of a loader: it lacks consumed"):
        ShardLoader(dataset, 4, seed=1).load_state_dict({k: v for k, v in state.items() if k != "consumed"})


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_stays_valid_until_the_next_but_one_is_asked_for(dataset, prefetch):
    """Also across epochs, and when a loop is left."""
    loader = ShardLoader(dataset, 8, prefetch=prefetch)
    before: tuple[dict[str, torch.Tensor], torch.Tensor] | None = None
    for epoch in range(4):
        for number, batch in enumerate(loader):
            if before is not None:
                assert torch.equal(before[0]["image"], before[1])
            before = batch, batch["image"].clone()
            if epoch == 1 and number == 2:
                break


def test_memory_is_used_again_unless_copies_are_asked_for(dataset):
    def places(**more):
        loader = ShardLoader(dataset, 8, drop_last=True, **more)
        kept = [batch["image"] for _ in range(3) for batch in loader]
        return len({image.data_ptr() for image in kept}), kept

    assert places(prefetch=1)[0] <= 3
    num, kept = places(prefetch=1, copy=True)
    assert num == len(kept) == 21
    expected = [EpochOrder(NUM, 0, epoch).at(np.arange(56)) for epoch in range(3)]
    for image, samples in zip(kept, np.concatenate(expected).reshape(-1, 8), strict=True):
        assert torch.equal(image, dataset[samples]["image"])


def test_a_batch_that_is_larger_than_the_data_set_needs_no_more_memory_than_that(dataset):
    (batch,) = ShardLoader(dataset, 1 << 40)
    assert sorted(ids_of(batch)) == IDS.tolist()


def test_the_numbers_of_the_samples_come_along_when_asked_for(dataset):
    for batch in ShardLoader(dataset, 8, with_index=True):
        assert IDS[batch["index"].numpy()].tolist() == ids_of(batch)


def test_an_empty_data_set_has_no_batches(data):
    dataset = ShardDataset(data, partition=(0, 500))
    assert len(dataset) == 0
    for more in ({}, {"pad_last": True}, {"world_size": 2, "rank": 1}):
        assert list(ShardLoader(dataset, 4, **more)) == []


def test_arguments_that_contradict_each_other_are_refused(dataset):
    for arguments, message in [
        ({"rank": 1}, "go together"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"prefetch": -1}, "prefetch -1"),
        ({"drop_last": True, "pad_last": True}, "not both"),
        ({"batch_size": 2.5}, "batch_size has to be a whole number, not 2.5"),
        ({"batch_size": "8"}, "batch_size has to be a whole number, not '8'"),
        ({"device": "gpu"}, "'gpu' is no device; write cpu, cuda or cuda:N"),
        ({"start_method": "x"}, "start_method is fork, spawn or forkserver, not 'x'"),
        ({"seed": None}, "seed has to be a whole number, not None"),
    ]:
        with pytest.raises(UsageError, match=message):
            ShardLoader(dataset, **{"batch_size": 4, **arguments})


# ends


def test_the_thread_ends_with_its_iterator(dataset, reading_threads):
    loader = ShardLoader(dataset, 4)
    iterator = iter(loader)
    next(iterator)
    assert len(reading_threads()) == 1
    del iterator
    assert not reading_threads()
    for _ in loader:
        break
    assert not reading_threads()
    with pytest.raises(ZeroDivisionError):
        for _ in loader:
            1 / 0  # noqa: B018
    gc.collect()
    assert not reading_threads()
    with loader:
        kept = iter(loader)
        next(kept)
    assert not reading_threads()
    assert next(kept, None) is None
    kept = iter(loader)
    list(kept)
    assert not reading_threads()


def test_a_new_iterator_ends_the_one_before(dataset):
    loader = ShardLoader(dataset, 4, seed=1)
    old = iter(loader)
    first = ids_of(next(old))
    new = iter(loader)
    assert next(old, None) is None
    assert [first, *(ids_of(batch) for batch in new)] == epoch_of(ShardLoader(dataset, 4, seed=1))


def test_cycles_of_references_hold_no_thread(dataset, reading_threads):
    class Trainer:
        pass

    trainer = Trainer()
    trainer.me = trainer
    trainer.batches = iter(ShardLoader(dataset, 4))
    next(trainer.batches)
    del trainer
    gc.collect()
    assert not reading_threads()


def test_interrupting_the_trainer_leaves_nothing_behind(dataset, reading_threads):
    def interrupted() -> None:
        for number, _ in enumerate(ShardLoader(dataset, 4)):
            if number == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    gc.collect()
    assert not reading_threads()


def test_a_fork_cannot_continue_an_iterator_but_may_begin_its_own(dataset):
    loader = ShardLoader(dataset, 8, seed=4)
    iterator = iter(loader)
    next(iterator)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            try:
                next(iterator)
            except LoaderError:
                rest = epoch_of(loader)
                code = 0 if len(rest) == 7 else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expected = epoch_of(ShardLoader(dataset, 8, seed=4))
    assert [ids_of(batch) for batch in iterator] == expected[1:]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_damaged_shard_is_an_error_in_the_trainer(tmp_path, prefetch, reading_threads):
    directory = make_data(tmp_path / "w")
    shard = directory / "shard_00001.h5"
    os.truncate(shard, shard.stat().st_size // 2)
    loader = ShardLoader(ShardDataset(directory, ["image"]), 4, shuffle=False, prefetch=prefetch)
    with pytest.raises(ShardError, match=r"shard_00001\.h5.*run"):
        epoch_of(loader)
    assert not reading_threads()
    with pytest.raises(ShardError):
        next(iter(loader))


def test_bugs_in_reading_reach_the_trainer_as_they_are(dataset, monkeypatch):
    loader = ShardLoader(dataset, 4)
    monkeypatch.setattr(type(dataset.reader()), "read", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(iter(loader))


def test_memory_stays_flat_over_ten_epochs(dataset):
    def in_use() -> tuple[int, int]:
        gc.collect()
        num_tensors = sum(issubclass(type(found), torch.Tensor) for found in gc.get_objects())
        return tracemalloc.get_traced_memory()[0], num_tensors

    loader = ShardLoader(dataset, 8, seed=1)
    tracemalloc.start()  # and not what the system has given to the process, which follows other rules
    try:
        for _ in range(3):
            epoch_of(loader)
        num_bytes, num_tensors = in_use()
        for _ in range(10):
            epoch_of(loader)
        more_bytes, still = in_use()
    finally:
        tracemalloc.stop()
    assert still == num_tensors
    assert more_bytes - num_bytes < 64 << 10  # ten rings of slots would be eight times as large


def test_what_a_device_normalises_equals_what_is_normalised_here(everything):
    from merlin.train.loading.delivery import Delivery
    from merlin.train.loading.order import Planned

    indices = np.array([5, 3, 9])
    deliver = Delivery(everything, torch.device("cpu"), copy=False, extras=("valid", "index"))
    ready = deliver(everything.reader(raw=True).read(indices), 0, Planned(indices, 2, 3))
    assert ready.batch.pop("valid").tolist() == [True, True, False]
    assert ready.batch.pop("index").tolist() == [5, 3, 9]
    for key, expected in everything[indices].items():
        assert ready.batch[key].dtype == expected.dtype
        torch.testing.assert_close(ready.batch[key], expected, rtol=1e-5, atol=1e-5)
