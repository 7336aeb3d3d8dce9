"""Commands of merlin for tests: each is a process of its own, forked from one that has loaded the modules before.

    done = run_merlin("status", workspace, "--json", cwd=folder)  # as subprocess.run(["merlin", …]) would

Half of a short command's time is imports, and the tests run a thousand of them. Where starting a command, its
modules or its signals are what is tested, use `subprocess`.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

_UMASK = threading.Lock()  # reading it changes it for a moment, of all threads

PRELOADED = (
    "asyncio", "celery", "duckdb", "h5py", "hdf5plugin", "kombu", "numpy", "redis", "rich.console", "rich.table",
    "merlin.cli.commands.restart", "merlin.cli.commands.run", "merlin.cli.commands.shards",
    "merlin.cli.commands.status", "merlin.cli.execute", "merlin.cli.extending", "merlin.cli.main",
    "merlin.cli.progress", "merlin.cli.publishing", "merlin.execution.distributed.control",
    "merlin.execution.distributed.open_study", "merlin.execution.embedded", "merlin.server.lifecycle",
    "merlin.shards.describe", "merlin.shards.proving.verify", "merlin.spec.load", "merlin.base.document.validation",
    "merlin.status.snapshot", "merlin.status.sql", "merlin.workspace.checking", "merlin.workspace.prepare",
)  # fmt: skip


def run_merlin(
    *words: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = 200
) -> subprocess.CompletedProcess[str]:
    """Run `merlin …` to its end. Raises subprocess.TimeoutExpired, after it was killed."""
    argv = [str(word) for word in words]
    request = {
        "argv": argv,
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "umask": _umask(),
    }
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, ours:
        with theirs:
            fds = [out.fileno(), err.fileno(), theirs.fileno()]
            socket.send_fds(_nursery(os.getpid()), [json.dumps(request).encode()], fds)
        code = _wait(ours, argv, timeout)
        for file in (out, err):
            file.seek(0)
        return subprocess.CompletedProcess(
            ["merlin", *argv], code, out.read().decode(), err.read().decode(errors="replace")
        )


def _wait(replies: socket.socket, argv: Sequence[str], timeout: float) -> int:
    """The exit code of the command, which first tells its process id."""
    deadline = time.monotonic() + timeout
    said = b""
    while said.count(b"\n") < 2:
        if not select.select([replies], [], [], max(0.0, deadline - time.monotonic()))[0]:
            with suppress(ProcessLookupError):
                if said:  # else it has not begun
                    os.kill(int(said), signal.SIGKILL)
            raise subprocess.TimeoutExpired(["merlin", *argv], timeout)
        more = replies.recv(100)
        assert more, "the process that starts the commands has died"
        said += more
    return int(said.split()[1])


def _umask() -> int:
    with _UMASK:
        mask = os.umask(0o077)
        os.umask(mask)
    return mask


@functools.cache
def _nursery(owner: int) -> socket.socket:
    """The socket to the process that forks commands; it ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        # stays where it is when a test removes its folder, and has no configuration of anybody's
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # none but the main thread, which forks
            cwd="/",
            start_new_session=True,
        )
    atexit.register(ours.close)
    return ours


# ------------------------------------------------------------------ in the other process


def _serve(requests: socket.socket) -> None:
    import importlib

    for name in PRELOADED:
        importlib.import_module(name)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not data:
            return
        middle = os.fork()
        if not middle:
            requests.close()
            _supervise(json.loads(data), fds)
            os._exit(0)
        for fd in fds:
            os.close(fd)
        os.waitpid(middle, 0)


def _supervise(request: dict, fds: list[int]) -> None:
    """Leave the process that forks at once; run the command in a child, and tell its end."""
    if os.fork():
        return
    out, err, replies = fds
    pid = os.fork()
    if not pid:
        os.close(replies)
        _become_merlin(request, out, err)
    os.write(replies, f"{pid}\n".encode())
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os.write(replies, f"{code}\n".encode())


def _become_merlin(request: dict, out: int, err: int) -> None:
    for fd, target in ((out, 1), (err, 2)):
        os.dup2(fd, target)
        os.close(fd)
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = ["merlin", *request["argv"]]

    from merlin.cli.main import command

    command()


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
