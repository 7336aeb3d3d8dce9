"""Functions that run on several ranks of torch.distributed, each in a process that is forked from a warm server."""

from __future__ import annotations

import os
from collections.abc import Callable

from tournament_crew import CONTEXT

from merlin.train.parallel.mesh import Ranks


def _run(work: Callable[..., None], rank: int, size: int, port: int, arguments: tuple[object, ...]) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    import torch
    from torch import distributed as dist

    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    work(Ranks(rank, size), *arguments)
    dist.destroy_process_group()


def run_on_ranks(size: int, work: Callable[..., None], *arguments: object) -> None:
    """Call `work(ranks, *arguments)` on every rank; fails if one of them does."""
    from torch import distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    processes = [
        CONTEXT.Process(target=_run, args=(work, rank, size, store.port, arguments)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(250)
    assert [process.exitcode for process in processes] == [0] * size


def write_distributed(ranks: Ranks, directory: object) -> None:
    """A state with a tensor that is split by rows, one that every rank has, and plain values."""
    from merlin.train.sharded_state import write_sharded

    state = {"model": {"split": _split(), "same": _same()}, "plain": [1, "a", (None, 2.5)]}
    write_sharded(directory, {"format": "test", "version": 1}, state, ranks)  # type: ignore[arg-type]


def read_distributed(ranks: Ranks, directory: object) -> None:
    """Read that state on any number of ranks, each its own part."""
    import torch

    from merlin.train.sharded_state import read_sharded

    like = {"model": {"split": torch.zeros_like(_split()), "same": torch.zeros(3)}}
    state = read_sharded(directory, "test", 1, like)  # type: ignore[arg-type]
    assert torch.equal(state["model"]["split"].to_local(), _split().to_local())
    assert torch.equal(state["model"]["same"], _same()) and state["plain"] == [1, "a", (None, 2.5)]


def _same() -> object:
    import torch

    return torch.arange(3.0)


def _split() -> object:
    import torch
    from torch import distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return distribute_tensor(torch.arange(21.0).reshape(7, 3), mesh, [Shard(0)])
