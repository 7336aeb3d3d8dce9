"""Trainers as processes of their own that start at once, with torch loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from commands import SCIENCE, TRAINING_LIMIT_S, WarmProcess, training_environment

from merlin.train.metrics_log import read_metrics
from merlin.train.run_directory import RunDirectory
from merlin.train.tournament.presence import announce, presence_directory


class Rank(WarmProcess):
    """One rank of a trainer."""

    def __init__(self, directory: Path, trainer: int | None, variables: Mapping[str, str]) -> None:
        argv = ["merlin.train.process", str(directory)]
        argv += [] if trainer is None else ["--trainer", str(trainer)]
        env = training_environment(**variables)
        reading, self._life = os.pipe()  # a trainer ends when its standard input does
        super().__init__("module", argv, env=env, input=reading, output=2, loaded=SCIENCE)
        os.close(reading)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and super()._end(timeout) is not None:
            os.close(self._life)
        return self.returncode


class Trainers:
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
        self.processes: dict[int, list[Rank]] = {k: [] for k in trainers}
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
                process = Rank(run.path, None if together else trainer, {**where, **variables})
                self.processes[trainer].append(process)

    def __enter__(self) -> Trainers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def kill(self, trainer: int | None = None) -> None:
        """One trainer, or all at once."""
        some = [p for k, processes in self.processes.items() if trainer in (None, k) for p in processes]
        for process in some:
            process.kill()
        for process in some:
            process.wait()

    def stop(self) -> None:
        for processes in self.processes.values():
            for process in processes:
                process.terminate()

    def finish(self) -> dict[int, set[int]]:
        """Exit codes of the ranks of each trainer."""
        return {
            k: {process.wait(TRAINING_LIMIT_S) for process in processes}
            for k, processes in self.processes.items()
        }


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
