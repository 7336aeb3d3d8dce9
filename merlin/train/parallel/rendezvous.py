"""How the processes of a world find each other: at an address, or through a file in a directory that all see."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from merlin.base.files import write_text
from merlin.errors import TrainingError
from merlin.train.parallel.world import World

JOIN_S = 300.0
CONNECT_S = 5.0  # before the address is read again, which may be one of an earlier launch
_POLL_S = 0.05


class Rendezvous(Struct, frozen=True):
    """A store that all processes of the world share."""

    world: World
    store: Any = None  # torch.distributed.Store; None in a world of one process

    @staticmethod
    def join(world: World, directory: Path, env: Mapping[str, str]) -> Rendezvous:
        """Find the other processes at MASTER_ADDR, or through a file in `directory`.

        Raises TrainingError if they do not all come.
        """
        if world.size == 1:
            return Rendezvous(world)
        file = directory / f".meeting-{world.job}"
        try:
            store = _through_file(world, file) if world.job else _at_address(world, env)
            store.add("arrived", 1)
            _wait_for_all(store, world)
        except (RuntimeError, OSError) as error:
            why = str(error).rstrip(".")
            raise TrainingError(
                f"rank {world.rank} of {world.size} could not meet the others within {JOIN_S:.0f} s: {why}; "
                "did all of them start, with the same configuration? One that failed has printed its own error"
            ) from error
        finally:
            if world.job and world.rank == 0:
                file.unlink(missing_ok=True)
        return Rendezvous(world, store)

    def from_first(self, key: str, value: str | None) -> str:
        """The value that rank 0 of the world gives under a key; the other ranks give None."""
        if self.store is None:
            assert value is not None
            return value
        if value is not None:
            self.store.set(key, value)
        return str(self.store.get(key).decode())

    def make_group(self, name: str, rank: int, size: int) -> None:
        """Set up torch.distributed among the processes that give the same name."""
        dist.init_process_group(
            _backends(),
            store=PrefixStore(name, self.store),
            rank=rank,
            world_size=size,
            timeout=timedelta(minutes=10),
        )

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def _backends() -> str:
    """What connects tensors of each device; without it, a process that sees a GPU could send nothing from the CPU."""
    return "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"


def serve_store() -> TCPStore:
    """A store on this machine for processes to meet at; it lives as long as the object does."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def _at_address(world: World, env: Mapping[str, str]) -> Any:
    """The store that torchrun serves, or else rank 0."""
    served = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        env["MASTER_ADDR"],
        int(env["MASTER_PORT"]),
        is_master=world.rank == 0 and not served,
        wait_for_workers=False,
        timeout=timedelta(seconds=JOIN_S),
    )
    return PrefixStore(f"merlin/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _through_file(world: World, file: Path) -> Any:
    """Rank 0 serves a store and writes its address into a file that the others wait for.

    Raises RuntimeError if nobody answers, or if this rank has come before: then two launches share the file.
    """
    limit = timedelta(seconds=JOIN_S)
    if world.rank == 0:
        store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=limit)
        write_text(file, f"{socket.gethostname()} {store.port}")
    else:
        store = _written(file)
        store.set_timeout(limit)
    if store.add(f"rank {world.rank}", 1) > 1:
        raise RuntimeError(
            f"another launch meets through {file} at the same time; give each an output or a directory of its own"
        )
    return store


def _written(file: Path) -> TCPStore:
    """The store whose address is in the file, which may still name one of an earlier launch."""
    end, why = time.monotonic() + JOIN_S, f"nobody wrote {file}"
    while time.monotonic() < end:
        try:
            host, port = file.read_text().split()
            why = f"{host}:{port}, which {file} names, does not answer"
            limit = timedelta(seconds=min(CONNECT_S, JOIN_S))
            return TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
        except (OSError, ValueError, RuntimeError):  # not written yet, or by an earlier launch
            time.sleep(_POLL_S)
    raise RuntimeError(why)


def _wait_for_all(store: Any, world: World) -> None:
    end = time.monotonic() + JOIN_S
    while (num := store.add("arrived", 0)) < world.size:
        if time.monotonic() > end:
            raise RuntimeError(f"only {num} of {world.size} processes came")
        time.sleep(_POLL_S)
