"""The process that forks commands and programs of tests, which so have all modules loaded; see commands.py.

    python warm_process.py SOCKET OWNER MODULE…   loads the modules, and ends when the process OWNER does

Each connection to the listening SOCKET is one command: it sends a request with stdin, stdout and stderr, is told the
process id and at its end the exit code, and kills the command when it goes away.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from commands import warm_probes
from forked_module import (
    end,
    exit_code_of,
    exit_code_of_module,
    fork_celery,
    fork_trainers,
    fork_workers,
    take_environment,
)

REQUEST_BYTES = 1 << 20
HUGE_PAGE = 2 << 20
MADV_COLLAPSE = 25  # of linux/mman.h


class Server:
    """Forks a child for each connection, and tells its end."""

    def __init__(self, listening: socket.socket, owner: int) -> None:
        self._listening = listening
        self._events = selectors.DefaultSelector()
        self._listen_to(listening, self._accept)
        self._listen_to(owner, self._finish)

    def serve(self) -> NoReturn:
        while True:
            for key, _ in self._events.select():
                if key.fd in self._events.get_map():  # an earlier event may have ended this child
                    key.data()

    def _listen_to(self, source: socket.socket | int, react: Callable[[], None]) -> None:
        self._events.register(source, selectors.EVENT_READ, react)

    def _accept(self) -> None:
        client, _ = self._listening.accept()
        self._listen_to(client, partial(self._start, client))

    def _start(self, client: socket.socket) -> None:
        self._events.unregister(client)
        data, fds, _, _ = socket.recv_fds(client, REQUEST_BYTES, 3)
        if not data:
            client.close()
            return
        pid = os.fork()
        if not pid:
            client.close()
            self._close_all()
            run(json.loads(data), fds)
        for fd in fds:
            os.close(fd)
        pidfd = os.pidfd_open(pid)
        with suppress(ConnectionError):
            client.send(f"{pid}\n".encode())
        self._listen_to(pidfd, partial(self._tell_end, client, pid, pidfd))
        self._listen_to(client, partial(self._kill, client, pidfd))

    def _tell_end(self, client: socket.socket, pid: int, pidfd: int) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        for source in (client, pidfd):
            with suppress(KeyError):
                self._events.unregister(source)
        os.close(pidfd)
        with client, suppress(ConnectionError):
            client.send(f"{code}\n".encode())

    def _kill(self, client: socket.socket, pidfd: int) -> None:
        """Kill the command, because the process that waits for it has died."""
        self._events.unregister(client)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)

    def _finish(self) -> None:
        os._exit(0)

    def _close_all(self) -> None:
        for key in list(self._events.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
            else:
                os.close(key.fd)
        self._events.close()


# ------------------------------------------------------------------ in the command


def run(request: dict, fds: Sequence[int]) -> NoReturn:
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    # anew: those of the server may stand for files, and a pipe cannot be asked for its position
    sys.stdout = open(1, "w", encoding="utf-8", errors=sys.stdout.errors, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors=sys.stderr.errors, closefd=False)  # noqa: SIM115
    os.umask(request["umask"])
    if request.get("is_session"):
        os.setsid()
    take_environment(request["env"])
    os.chdir(request["cwd"])
    del sys.path[0]  # the folder of this file, which a command does not know
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[0:0] = [path for path in given if path and path not in sys.path]
    end(exit_code_of(partial(KINDS[request["kind"]], request["argv"])))


def _become_merlin(argv: list[str]) -> None:
    """`merlin ARGV`."""
    sys.argv = ["merlin", *argv]
    sys.modules["__main__"] = types.ModuleType("__main__")  # else processes that it spawns run this file
    _fork_what_merlin_starts()

    from merlin.cli.main import command

    command()


def _become_code(argv: list[str]) -> None:
    """`python -c ARGV`."""
    sys.argv = ["-c", *argv[1:]]
    sys.path.insert(0, "")
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    _fork_what_merlin_starts()
    exec(compile(argv[0], "<string>", "exec"), main.__dict__)


def _become_module(argv: list[str]) -> None:
    """`python -m ARGV`."""
    _use_one_thread()
    fork_workers()  # a Celery worker makes copies, as it does without the libraries that are loaded here
    sys.exit(exit_code_of_module(argv))


KINDS: dict[str, Callable[[list[str]], None]] = {
    "merlin": _become_merlin,
    "code": _become_code,
    "module": _become_module,
}


def _fork_what_merlin_starts() -> None:
    from merlin.shards.evidence import probe

    fork_workers()
    fork_celery()
    probe.subprocess = warm_probes(ADDRESS)  # type: ignore[assignment]
    if _use_one_thread():
        fork_trainers()


def _use_one_thread() -> bool:
    """Threads of torch do not survive a fork; returns whether it is loaded."""
    if "torch" not in sys.modules:
        return False
    import torch

    torch.set_num_threads(1)
    return True


def load(name: str) -> None:
    """Import a module; "package.*" are a package and all modules below it."""
    module = importlib.import_module(name.removesuffix(".*"))
    if name.endswith(".*"):
        for found in pkgutil.walk_packages(module.__path__, f"{module.__name__}."):
            importlib.import_module(found.name)


SPEC = """
description: {name: warm, description: what commands build when they first need it}
study:
  - {name: a, run: {cmd: "echo $(X) $(MERLIN_SAMPLE_ID)", max_retries: 1}}
  - {name: b, run: {depends: [a], aggregate: {fields: {y: {file: out.json, key: y}}}}}
global.parameters: {P: {values: [1], label: P.%%}}
merlin:
  samples: {generate: {method: sobol, num: 2, bounds: {X: [0, 1]}}, column_labels: [X]}
"""


def warm_up() -> None:
    """Build types, decoders and patterns, as a command does when it first reads a spec and a plan."""
    from merlin.plan.plan_io import plan_from_json, plan_to_json
    from merlin.workspace.checking import load_checked
    from merlin.workspace.options import StudyOptions
    from merlin.workspace.prepare import plan_only

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "warm.yaml"
        path.write_text(SPEC)
        spec = load_checked(path, {}, StudyOptions())
        plan_from_json(plan_to_json(plan_only(spec)))
        spec.expanded_yaml()


def use_huge_pages() -> None:
    """Put the memory of this process into huge pages: a fork copies the tables of its pages, small ones for most of
    the time that a short command takes. Kernels before Linux 6.1 do not do it, and nothing else changes.
    """
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, access, _, _, inode, *path = line.split(maxsplit=5)
        lo, hi = (int(edge, 16) for edge in span.split("-"))
        lo, hi = -(-lo // HUGE_PAGE) * HUGE_PAGE, hi // HUGE_PAGE * HUGE_PAGE
        if access.startswith("rw") and inode == "0" and path in ([], ["[heap]"]) and lo < hi:
            madvise(ctypes.c_void_p(lo), ctypes.c_size_t(hi - lo), MADV_COLLAPSE)


if __name__ == "__main__":
    owner = os.pidfd_open(int(sys.argv[2]))
    gc.disable()  # modules leave no garbage, and looking for it takes a quarter of the time
    for name in sys.argv[3:]:
        load(name)
    warm_up()
    gc.enable()
    gc.set_threshold(50_000, 20, 50)  # as commands do
    gc.freeze()  # the collector must not touch this memory in a child, since that would copy it
    typing._cleanups.clear()  # type: ignore[attr-defined]  # a library empties caches at exit, with the same effect
    use_huge_pages()
    listening = socket.socket(fileno=int(sys.argv[1]))
    ADDRESS = listening.getsockname()
    Server(listening, owner).serve()
