"""Loaders with worker processes: the same batches, clear errors, nobody left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import SCIENCE, WarmProcess
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler
from train_study import IDS, make_data
from waiting import wait_until

from merlin.errors import LoaderError, ShardError
from merlin.train import ShardDataset, ShardLoader

pytestmark = pytest.mark.usefixtures("garbage_of_others")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("workers") / "w")


@pytest.fixture(scope="module")
def dataset(data: Path) -> ShardDataset:
    return ShardDataset(
        data, stack_scalars=True, layout="chw", normalise={"inputs": "minmax", "image": "standard"}
    )


@pytest.fixture(autouse=True)
def nobody_is_left_behind():
    yield
    gc.collect()
    assert not multiprocessing.active_children()


def epochs_of(loader: ShardLoader, num: int = 1) -> list[dict[str, torch.Tensor]]:
    return [{key: values.clone() for key, values in batch.items()} for _ in range(num) for batch in loader]


def assert_same(batches: list[dict[str, torch.Tensor]], expected: list[dict[str, torch.Tensor]]) -> None:
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert list(batch) == list(other)
        assert all(torch.equal(values, other[key]) for key, values in batch.items())


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("num_workers", "method"),
    [(1, "fork"), (2, "fork"), (3, "fork"), (4, "fork"), (2, "spawn"), (1, "forkserver")],
)
def test_workers_give_the_batches_that_a_loader_without_them_gives(dataset, num_workers, method):
    expected = epochs_of(ShardLoader(dataset, 8, seed=3, pad_last=True, with_index=True), 3)
    with ShardLoader(
        dataset, 8, seed=3, pad_last=True, with_index=True, num_workers=num_workers, start_method=method
    ) as loader:
        assert_same(epochs_of(loader, 3), expected)


@pytest.mark.parametrize(
    ("num_workers", "method"), [(0, None), (1, "fork"), (2, "fork"), (4, "fork"), (1, "spawn")]
)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_torchs_own_loader_works_with_workers(dataset, num_workers, method):
    sampler = BatchSampler(SequentialSampler(dataset), 8, drop_last=False)
    both = ({"batch_sampler": sampler}, {"batch_size": None, "sampler": sampler})
    for arguments in both[:1] if method == "spawn" else both:  # each starts processes that have to load torch
        batches = list(
            DataLoader(dataset, num_workers=num_workers, multiprocessing_context=method, **arguments)
        )
        assert_same(batches, epochs_of(ShardLoader(dataset, 8, shuffle=False)))


def test_compressed_shards_are_read_by_workers(tmp_path):
    dataset = ShardDataset(make_data(tmp_path / "w", compression="zstd"))
    dataset[[0, 30]]  # its files are open when the workers are forked
    expected = epochs_of(ShardLoader(dataset, 8, seed=1), 2)
    with ShardLoader(dataset, 8, seed=1, num_workers=2, start_method="fork") as loader:
        assert_same(epochs_of(loader, 2), expected)


def test_a_loop_that_is_left_and_a_state_are_continued(dataset):
    expected = epochs_of(ShardLoader(dataset, 8, seed=2))
    with ShardLoader(dataset, 8, seed=2, num_workers=2) as loader:
        seen = []
        for batch in loader:
            seen.append({key: values.clone() for key, values in batch.items()})
            if len(seen) == 2:
                break
        state = loader.state_dict()
        assert_same([*seen, *epochs_of(loader)], expected)
        loader.load_state_dict(state)
        assert_same(epochs_of(loader), expected[2:])


def test_a_batch_stays_valid_until_the_next_but_one_is_asked_for(dataset):
    before = None
    with ShardLoader(dataset, 4, num_workers=2, prefetch=1) as loader:
        for _ in range(3):
            for batch in loader:
                if before is not None:
                    assert torch.equal(before[0]["image"], before[1])
                before = batch, batch["image"].clone()


def test_a_worker_that_dies_is_an_error_and_the_next_loop_goes_on(dataset):
    loader = ShardLoader(dataset, 2, seed=1, num_workers=2, prefetch=1)
    seen = []
    with pytest.raises(LoaderError, match=r"loader worker \d \(pid \d+\) was ended by SIGKILL"):
        for batch in loader:
            seen.append({key: values.clone() for key, values in batch.items()})
            if len(seen) == 3:
                for child in multiprocessing.active_children():
                    os.kill(child.pid, signal.SIGKILL)
    assert_same([*seen, *epochs_of(loader)], epochs_of(ShardLoader(dataset, 2, seed=1)))
    loader.close()


def test_a_damaged_shard_is_the_same_error_with_workers(tmp_path):
    directory = make_data(tmp_path / "w")
    os.truncate(directory / "shard_00001.h5", 5000)
    with (
        ShardLoader(ShardDataset(directory, ["image"]), 4, num_workers=2) as loader,
        pytest.raises(ShardError, match=r"shard_00001\.h5"),
    ):
        epochs_of(loader)


def test_a_bug_in_a_worker_is_told_with_its_traceback(dataset, monkeypatch):
    monkeypatch.setattr(type(dataset.reader()), "read", lambda *_: 1 / 0)
    with (
        ShardLoader(dataset, 4, num_workers=1, start_method="fork") as loader,
        pytest.raises(LoaderError, match=r"loader worker 0 failed: ZeroDivisionError(.|\n)*Traceback"),
    ):
        epochs_of(loader)


def test_too_little_shared_memory_is_told(dataset):
    with pytest.raises(LoaderError, match=r"shared memory .* cannot be had"):
        next(iter(ShardLoader(dataset, 1 << 36, num_workers=1, pad_last=True)))


@pytest.mark.parametrize("how", ["dropped", "closed", "exception", "interrupt"])
def test_workers_leave_with_their_loader(dataset, how):
    def use() -> None:
        loader = ShardLoader(dataset, 4, num_workers=2)
        for number, _ in enumerate(loader):
            assert len(multiprocessing.active_children()) == 2
            if number == 2:
                if how == "exception":
                    raise ZeroDivisionError
                if how == "interrupt":
                    os.kill(os.getpid(), signal.SIGINT)
                break
        if how == "closed":
            loader.close()
            assert not multiprocessing.active_children()

    if how in ("exception", "interrupt"):
        with pytest.raises(ZeroDivisionError if how == "exception" else KeyboardInterrupt):
            use()
    else:
        use()
    gc.collect()
    assert not multiprocessing.active_children()


PROGRAM = """
import multiprocessing, sys
from merlin.train import ShardDataset, ShardLoader
if __name__ == "__main__":
    _, what, data, *words = sys.argv
    dataset, running = ShardDataset(data), []
    for num_workers, method in (word.split("-") for word in words):
        running.append(iter(ShardLoader(dataset, 4, num_workers=int(num_workers), start_method=method)))
        next(running[-1])
    print(*[child.pid for child in multiprocessing.active_children()], flush=True)
    if what == "wait":
        sys.stdin.read()
"""


def test_a_program_ends_although_its_iterators_are_alive(data, tmp_path):
    """With worker processes of both kinds, and with a thread that reads ahead."""
    (tmp_path / "program.py").write_text(PROGRAM)
    argv = [sys.executable, str(tmp_path / "program.py"), "leave", str(data), "2-fork", "1-spawn", "0-fork"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 3
    assert not any(map(is_alive, workers))


@pytest.mark.parametrize(("num_workers", "method"), [(2, "fork"), (1, "spawn"), (1, "forkserver")])
def test_workers_leave_when_the_trainer_is_killed(data, num_workers, method):
    argv = [PROGRAM, "wait", str(data), f"{num_workers}-{method}"]
    (its_input, ours), (told, its_output) = os.pipe(), os.pipe()
    trainer = WarmProcess(
        "code", argv, env=os.environ, input=its_input, output=its_output, errors=2, loaded=SCIENCE
    )
    for descriptor in (its_input, its_output):
        os.close(descriptor)
    with open(ours, "wb"), open(told) as output:
        workers = [int(pid) for pid in output.readline().split()]
        assert len(workers) == num_workers
        assert all(map(is_alive, workers))
        trainer.kill()
    wait_until(lambda: not any(map(is_alive, workers)))


def test_memory_stays_flat_over_ten_epochs(dataset):
    def resident() -> int:
        pids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return pages * os.sysconf("SC_PAGESIZE")

    with ShardLoader(dataset, 8, seed=1, num_workers=2) as loader:

        def epoch() -> int:
            return sum(len(batch["inputs"]) for batch in loader)

        for _ in range(4):
            assert epoch() == len(IDS)
        before = resident()
        for _ in range(10):
            epoch()
        assert resident() - before < 8 << 20
