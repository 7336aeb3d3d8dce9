"""Trainers as processes of their own that start at once: forked from a server that has loaded torch already."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from merlin.train.metrics_log import read_metrics
from merlin.train.run_directory import RunDirectory
from merlin.train.tournament.presence import announce, presence_directory

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        *("h5py", "numpy.ma", "torch._inductor", "torch.utils.tensorboard", "merlin.shards.ensemble"),
        *("merlin.train.distributed_parts", "merlin.train.process"),
    ]
)


def _rank(directory: str, trainer: int | None, variables: dict[str, str]) -> None:
    gc.freeze()  # the collector must not touch what the server has loaded, since that would copy its memory
    reading, _open = os.pipe()  # standard input ends when the process does
    os.dup2(reading, 0)
    os.environ.update({"GLOO_SOCKET_IFNAME": "lo", **variables})
    import torch

    from merlin.train.process import main

    torch.set_num_threads(1)
    sys.exit(main([directory, *(() if trainer is None else ("--trainer", str(trainer)))]))


class Crew:
    """The processes of a run, one for each rank of each trainer."""

    def __init__(
        self,
        run: RunDirectory,
        trainers: Sequence[int],
        ranks: int = 1,
        together: bool = False,
        hold: Mapping[int, int] | None = None,
    ):
        """`hold`: trainer -> number of batches after which it waits until it is told to stop."""
        from torch._C._distributed_c10d import TCPStore

        self.run = run
        self.processes: dict[int, list] = {k: [] for k in trainers}
        self._stores = []

        def address() -> dict[str, str]:
            store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            self._stores.append(store)
            return {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
            }

        if not together:
            announce(presence_directory(run.tournament), trainers)
        where = address() if together else {}
        for place, trainer in enumerate(trainers):
            where = address() if ranks > 1 and not together else where
            for rank in range(ranks):
                number, size = (place * ranks + rank, len(trainers) * ranks) if together else (rank, ranks)
                variables = {"RANK": str(number), "WORLD_SIZE": str(size)} if where else {}
                if hold and trainer in hold:
                    variables["HOLD_AFTER"] = str(hold[trainer])
                arguments = (str(run.path), None if together else trainer, {**where, **variables})
                process = CONTEXT.Process(target=_rank, args=arguments)
                process.start()
                self.processes[trainer].append(process)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def kill(self, trainer: int | None = None) -> None:
        """One trainer, or all at once."""
        some = [p for k, processes in self.processes.items() if trainer in (None, k) for p in processes]
        for process in some:
            process.kill()
        for process in some:
            process.join()

    def stop(self) -> None:
        for processes in self.processes.values():
            for process in processes:
                os.kill(process.pid, signal.SIGTERM)

    def finish(self, limit_s: float = 250) -> dict[int, set[int]]:
        """Exit codes of the ranks of each trainer."""
        for processes in self.processes.values():
            for process in processes:
                process.join(limit_s)
                assert process.exitcode is not None, "it does not end"
        return {k: {process.exitcode for process in processes} for k, processes in self.processes.items()}


def rounds_of(run: RunDirectory, trainer: int) -> list[dict]:
    """What a trainer wrote about its rounds, without times."""
    lines = read_metrics(run.trainer(trainer).path / "metrics.jsonl")
    return [
        {name: value for name, value in line.items() if name != "values"}
        for line in lines
        if line["kind"] == "round"
    ]


def num_rounds(run: RunDirectory, trainer: int) -> int:
    path = Path(run.trainer(trainer).path / "metrics.jsonl")
    return path.read_bytes().count(b'"kind": "round"') if path.is_file() else 0
