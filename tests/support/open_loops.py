"""Loops of the trainers of one run in this process, one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from train_run import Recorder, prepare_run

from merlin.train.events import StopRequest
from merlin.train.parallel.mesh import Mesh
from merlin.train.parallel.rendezvous import Rendezvous
from merlin.train.parallel.world import World
from merlin.train.process import open_loop, set_up_torch
from merlin.train.reports import Silent


@contextmanager
def loops_of(data: Path, directory: Path, *always: str) -> Iterator[Callable[..., list[Any]]]:
    """A function that opens the loops of `num` trainers, configured by the words; they are closed at the end."""
    with ExitStack() as stack:

        def open_some(*words: str, num: int = 3, stop: StopRequest | None = None) -> list[Any]:
            prepared = prepare_run(data, directory, *always, *words)
            begun = replace(prepared, run=prepared.begin())
            return [stack.enter_context(opened_loop(begun, index, Recorder(), stop)) for index in range(num)]

        yield open_some


@contextmanager
def opened_loop(
    begun: Any, index: int, reports: Silent | None = None, stop: StopRequest | None = None
) -> Iterator[Any]:
    """The loop of a trainer of a run that has begun, with everything in place."""
    mesh = Mesh.build(Rendezvous(World()), begun.config.tournament, index)
    begun.run.trainer(index).path.mkdir(parents=True, exist_ok=True)
    device = set_up_torch(begun.run, begun.config, mesh)
    with open_loop(begun.run, begun.config, mesh, device, reports or Silent(), stop or StopRequest()) as loop:
        yield loop
