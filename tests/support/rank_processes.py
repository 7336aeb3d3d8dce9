"""Functions that run on several ranks of torch.distributed, each in a process of its own, with torch loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from commands import SCIENCE, TRAINING_LIMIT_S, WarmProcess, training_environment

from merlin.base.records import FileFormat
from merlin.train.parallel.mesh import Ranks

FORMAT = FileFormat("test", 1)


def run_rank(name: str, rank: int, size: int, port: int, directory: str) -> None:
    """Call a function of this module as one of the ranks."""
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    globals()[name](Ranks(rank, size), Path(directory))
    dist.destroy_process_group()


def run_on_ranks(size: int, work: Callable[[Ranks, Path], None], directory: Path) -> None:
    """Call `work(ranks, directory)`, a function of this module, on every rank; fails if one of them does."""
    from torch import distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = []
    for rank in range(size):
        text = f"import rank_processes; rank_processes.run_rank{work.__name__, rank, size, store.port, str(directory)}"
        ranks.append(WarmProcess("code", [text], env=training_environment(), output=2, loaded=SCIENCE))
    assert [process.wait(TRAINING_LIMIT_S) for process in ranks] == [0] * size


def write_distributed(ranks: Ranks, directory: Path) -> None:
    """A state with a tensor that is split by rows, one that every rank has, and plain values."""
    from merlin.train.sharded_state import write_sharded

    state = {"model": {"split": _split(), "same": _same()}, "plain": [1, "a", (None, 2.5)]}
    write_sharded(directory, FORMAT.head(), state, ranks)


def read_distributed(ranks: Ranks, directory: Path) -> None:
    """Read that state on any number of ranks, each its own part."""
    import torch

    from merlin.train.sharded_state import read_sharded

    like = {"model": {"split": torch.zeros_like(_split()), "same": torch.zeros(3)}}
    state = read_sharded(directory, FORMAT, like)
    assert torch.equal(state["model"]["split"].to_local(), _split().to_local())
    assert torch.equal(state["model"]["same"], _same()) and state["plain"] == [1, "a", (None, 2.5)]


def _same() -> object:
    import torch

    return torch.arange(3.0)


def train_with_an_infinite_loss(ranks: Ranks, directory: Path) -> None:
    """Train a run that has begun, with a model whose loss is infinite on one rank; all keep the same weights."""
    import torch

    from merlin.train.config_file import load_config
    from merlin.train.events import StopRequest
    from merlin.train.parallel.mesh import Mesh
    from merlin.train.process import open_loop, set_up_torch
    from merlin.train.reports import Silent
    from merlin.train.run_directory import RunDirectory

    run, mesh = RunDirectory(directory), Mesh(ranks=ranks)
    config = load_config(run.config_path).config
    with open_loop(run, config, mesh, set_up_torch(run, config, mesh), Silent(), StopRequest()) as loop:
        loop.trainer.train_steps(3)
        weights = torch.cat([values.detach().ravel() for values in loop.trainer.trainee.parameters()])
    first, *others = ranks.gather(weights)
    assert others and all(torch.equal(first, other) for other in others)


def _split() -> object:
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(torch.arange(21.0).reshape(7, 3), mesh, [Shard(0)])
