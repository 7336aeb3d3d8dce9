"""The program of a job script: starts the workers on the nodes of its job, and ends with them.

    python -P -m merlin.cli.job_workers login1:6379 -- srun -N 2 … merlin.execution.distributed.node_workers '{…}'

It starts what `merlin run-workers SPEC --foreground` would start. The command was made when the job was submitted. This
program imports little: nodes are paid for from their first second, and reading a spec takes half of one.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from merlin.batch.here import allocation_here, client_here, end_for_children
from merlin.cli.output import remark
from merlin.errors import MerlinError
from merlin.execution.distributed import node_workers
from merlin.execution.distributed.start import (
    LOGS_DIR,
    Launch,
    StartedWorker,
    describe_exit,
    pass_signals_on,
    start,
)

ANSWER_S = 2.0  # for a connection to a server


def words(servers: Iterable[str], launch: Launch) -> list[str]:
    """The words after the name of this program: the address of each server, and the command."""
    return [*servers, "--", *launch.argv]


def run(servers: Sequence[str], argv: Sequence[str]) -> int:
    """Start the workers by the command `argv`, and wait for their end; returns the exit code.

    Raises ExecutionError if a server does not answer, or the launcher cannot be started.
    """
    if not all(map(_answers, servers)):
        _require_servers()
    allocation = allocation_here(os.environ, client=client_here(os.environ))
    launch = Launch(argv=tuple(argv), queues=dict.fromkeys(node_workers.names(argv), ()), is_local=False)
    started: list[StartedWorker] = []
    stay = pass_signals_on(started)
    environment = {**os.environ, **end_for_children(allocation)}
    started.append(start(launch, logs=Path.cwd() / LOGS_DIR, environment=environment))
    if code := stay(0):
        remark(f"the workers have ended: {describe_exit(started[0])}")
    return code


def _answers(server: str) -> bool:
    host, _, port = server.rpartition(":")
    if not port.isdecimal():
        return False  # the path of a socket
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def _require_servers() -> None:
    """Look closer at the servers that are configured now; they may have moved since the job was submitted."""
    from merlin.config.load import require_config
    from merlin.views.servers import require_reachable

    for warning in require_reachable(require_config()):
        remark(f"merlin: warning: {warning}")


def main(argv: Sequence[str]) -> int:
    end = argv.index("--")
    try:
        return run(argv[:end], argv[end + 1 :])
    except MerlinError as error:
        remark(f"merlin: error: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
