"""Starts the workers of one node, and ends with them: the program that a scheduler's launcher starts once on each node.

    python -P -m merlin.execution.distributed.node_workers '{"logs": "…", "workers": {"simw": ["python", …]}}'

It imports little: an allocation is paid for from its first second, and the workers have to load enough themselves.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from merlin.batch.environment import without
from merlin.batch.here import Here, find_here
from merlin.batch.registry import scheduler_of

NODE, CORES = "%node", "%cores"  # words of a worker's command that are known on its node alone
PASSED_ON = {  # signal -> what the workers get
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGTERM,
    signal.SIGUSR1: signal.SIGUSR1,
}


def command(workers: Mapping[str, Sequence[str]], logs: Path) -> list[str]:
    """The command that starts `workers` (name -> command) on the node where it is called."""
    what = json.dumps({"logs": str(logs), "workers": workers}, separators=(",", ":"))
    return [sys.executable, "-P", "-m", "merlin.execution.distributed.node_workers", what]


def names(argv: Sequence[str]) -> tuple[str, ...]:
    """The names of the workers that a line which ends with a `command` starts."""
    return tuple(json.loads(argv[-1])["workers"])


def place(here: Here) -> str:
    """The end of the names of this node's workers: "1234.node7" in job 1234, else "node7".

    Two allocations may share a node, and several nodes of a scheduler may be one host.
    """
    job = re.sub(r"\W", "", here.job.split(".")[0])
    return f"{job}.{here.host}" if job else here.host


def filled_in(words: Sequence[str], where: str, num_cores: int) -> list[str]:
    """The command of a worker, with the words filled in that are known on its node alone."""
    return [
        word.replace(NODE, where) if NODE in word else word.replace(CORES, str(num_cores)) for word in words
    ]


def run(workers: Mapping[str, Sequence[str]], logs: Path) -> int:
    """Start the workers, pass signals on to them, and wait for their end; returns 1 if one of them failed, else 0."""
    here = find_here(os.environ)
    where = place(here)
    environment = without(os.environ, scheduler_of(here.scheduler).launch_variables if here.scheduler else ())
    processes: list[subprocess.Popen[Any]] = []
    pending: list[signal.Signals] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        pending.append(PASSED_ON[signal.Signals(number)])
        for process in processes:
            with suppress(ProcessLookupError):
                process.send_signal(pending[-1])

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    logs.mkdir(parents=True, exist_ok=True)
    for name, words in workers.items():
        with (logs / f"{name}.{where}.log").open("ab") as log:
            process = subprocess.Popen(
                filled_in(words, where, here.cores),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )
        processes.append(process)
        for number in pending:  # signals that came before this worker was in the list
            process.send_signal(number)
    codes = [process.wait() for process in processes]
    return int(any(codes))


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    sys.exit(run(given["workers"], Path(given["logs"])))
