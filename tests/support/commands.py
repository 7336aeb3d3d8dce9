"""Commands of merlin for tests: each is a process of its own, forked from one that has loaded the modules before.

    done = run_merlin("status", workspace, "--json", cwd=folder)  # as subprocess.run(["merlin", …]) would
    done = run_python(text, cwd=folder)  # as subprocess.run([sys.executable, "-c", text]) would
    run = WarmCommand("merlin", ["run", spec])  # as subprocess.Popen(["merlin", …]) would
    write_merlin(folder / "merlin")  # a program that does so, for shell scripts

Half of a short command's time is imports, and the tests run a thousand of them. A test of how a command starts,
of its modules or its signals has to use `subprocess`. See warm_process.py for the other side.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

SUPPORT = Path(__file__).parent  # modules of tests
# an environment variable: the process that what is shared ends with, and the folder by which it is found
_SHARED = "SHARED_BY_TESTS"
_SOCKET = socket.AF_UNIX, socket.SOCK_SEQPACKET

TRAINING_LIMIT_S = 250.0  # enough for `merlin train` on a busy machine; only a failing test reaches it
COMMANDS = (  # `.*`: with all modules below
    "asyncio", "celery", "celery.apps.worker", "celery.concurrency.thread",
    "duckdb", "h5py", "hdf5plugin", "kombu", "redis", "rich.console", "rich.table", "scipy.stats.qmc",
    "merlin.api.*", "merlin.batch.*", "merlin.config.*", "merlin.execution.*", "merlin.ledger.*", "merlin.plan.*",
    "merlin.server.*", "merlin.shards.*", "merlin.spec.*", "merlin.status.*", "merlin.views.*", "merlin.workspace.*",
    "merlin.cli.commands.restart", "merlin.cli.commands.run", "merlin.cli.commands.server",
    "merlin.cli.commands.shards.find", "merlin.cli.commands.shards.verify", "merlin.cli.commands.status",
    "merlin.cli.commands.workers", "merlin.cli.execute", "merlin.cli.extending", "merlin.cli.live_workers",
    "merlin.cli.main", "merlin.cli.progress", "merlin.cli.publishing", "merlin.cli.running", "merlin.cli.study_status",
    "merlin.cli.updating",
)  # fmt: skip
# takes seconds and half a gigabyte, so it is loaded only on demand
SCIENCE = (
    *COMMANDS, "matplotlib.pyplot", "matplotlib.backends.backend_agg", "pandas", "pyarrow.parquet", "torch",
    "torch._inductor", "torch.utils.tensorboard", "merlin.train.distributed_parts", "merlin.train.process",
)  # fmt: skip


def run_merlin(
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 200,
    loaded: Sequence[str] = COMMANDS,
) -> subprocess.CompletedProcess[str]:
    """Run `merlin …` to its end. Raises subprocess.TimeoutExpired, after it was killed."""
    return _run_text("merlin", [str(word) for word in words], cwd, env, timeout, loaded)


def run_python(
    text: str,
    *words: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 200,
    loaded: Sequence[str] = COMMANDS,
) -> subprocess.CompletedProcess[str]:
    """Run `python -c TEXT …` to its end. Raises subprocess.TimeoutExpired, after it was killed."""
    return _run_text("code", [text, *map(str, words)], cwd, env, timeout, loaded)


def warm_probes(address: str | None = None) -> SimpleNamespace:
    """The part of `subprocess` that `merlin.shards.evidence.probe` uses; its processes have loaded h5py."""

    def run(
        command: Sequence[str], *, timeout: float, capture_output: bool, stdin: int
    ) -> subprocess.CompletedProcess[bytes]:
        assert command[1:3] == ["-P", "-m"] and capture_output and stdin == subprocess.DEVNULL
        code, out, err = _run(_request("module", command[3:], None, None), address or warm_process(), timeout)
        return subprocess.CompletedProcess(command, code, out, err)

    return SimpleNamespace(**{**vars(subprocess), "run": run})


class WarmProcess:
    """A process that has loaded the modules, with the part of `subprocess.Popen` that tests use; it ends with us."""

    def __init__(
        self,
        kind: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        output: int,
        errors: int | None = None,
        input: int | None = None,
        cwd: Path | None = None,
        is_session: bool = False,
        loaded: Sequence[str] = COMMANDS,
    ) -> None:
        """`merlin ARGV`, or `python -m ARGV` if the kind is "module", or `python -c ARGV` if it is "code".

        The descriptors are those of stdout, of stderr (the same, by default) and of stdin (by default empty).
        """
        self.args = list(argv)
        self.returncode: int | None = None
        request = {**_request(kind, argv, cwd, env), "is_session": is_session}
        self._replies = socket.socket(*_SOCKET)
        self._replies.connect(warm_process(loaded))
        with Path(os.devnull).open("rb") as nothing:
            fds = [
                nothing.fileno() if input is None else input,
                output,
                output if errors is None else errors,
            ]
            socket.send_fds(self._replies, [json.dumps(request).encode()], fds)
        self.pid = int(self._replies.recv(100))

    def poll(self) -> int | None:
        return self._end(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code. Raises subprocess.TimeoutExpired."""
        code = self._end(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _end(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._replies], [], [], timeout)[0]:
            self.returncode = int(self._replies.recv(100))
            self._replies.close()
        return self.returncode


def before_ours(folder: Path) -> str:
    """A PYTHONPATH that begins with a folder."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def training_environment(**variables: object) -> dict[str, str]:
    """The environment of `merlin train` and its trainers: they know the models of tests, and no group but their own."""
    groups = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    env = {name: value for name, value in os.environ.items() if name not in groups}
    env |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": before_ours(SUPPORT)}
    return env | {name: str(value) for name, value in variables.items()}


def write_merlin(path: Path, loaded: Sequence[str] = COMMANDS) -> None:
    """Write a program `merlin` that starts as fast as a shell does."""
    text = (SUPPORT / "merlin_program.py").read_text()
    path.write_text(f"#!{sys.executable} -ISE\nSOCKET = {warm_process(loaded)!r}\n{text}")
    path.chmod(0o755)


def _run_text(
    kind: str,
    argv: list[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    timeout: float,
    loaded: Sequence[str],
) -> subprocess.CompletedProcess[str]:
    code, out, err = _run(_request(kind, argv, cwd, env), warm_process(loaded), timeout)
    return subprocess.CompletedProcess([kind, *argv], code, out.decode(), err.decode(errors="replace"))


def _request(
    kind: str, argv: Sequence[str], cwd: Path | None, env: Mapping[str, str] | None
) -> dict[str, object]:
    return {
        "kind": kind,
        "argv": list(argv),
        "cwd": str(cwd or Path.cwd()),
        "env": dict(os.environ if env is None else env),
        "umask": _umask(),
    }


def _run(request: Mapping[str, object], address: str, timeout: float) -> tuple[int, bytes, bytes]:
    """The exit code and what it printed."""
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        Path(os.devnull).open("rb") as nothing,
        socket.socket(*_SOCKET) as replies,
    ):
        replies.connect(address)
        fds = [nothing.fileno(), out.fileno(), err.fileno()]
        socket.send_fds(replies, [json.dumps(request).encode()], fds)
        code = _wait(replies, request["argv"], timeout)
        for file in (out, err):
            file.seek(0)
        return code, out.read(), err.read()


def _wait(replies: socket.socket, argv: object, timeout: float) -> int:
    """The exit code of the command; its process id comes first."""
    deadline = time.monotonic() + timeout
    said = b""
    while said.count(b"\n") < 2:
        if not select.select([replies], [], [], max(0.0, deadline - time.monotonic()))[0]:
            with suppress(ProcessLookupError):
                if said:  # else the command has not begun
                    os.kill(int(said), signal.SIGKILL)
            raise subprocess.TimeoutExpired(argv, timeout)  # type: ignore[arg-type]
        more = replies.recv(100)
        assert more, "the process that starts the commands has died"
        said += more
    return int(said.split()[1])


def _umask() -> int:
    """The umask of the process. os.umask would change it for a moment, for all threads."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("Umask:")[2].split()[0], 8)


def warm_process(loaded: Sequence[str] = COMMANDS) -> str:
    """The address of the process that has loaded these modules.

    All processes of a test run share it: the first that asks starts it. It ends when the run does.
    """
    return _warm_process(*shared_place(), tuple(loaded))


def shared_place() -> tuple[int, Path]:
    """The process that leads the test run, and a folder that all its processes know; it lasts as long as the run."""
    if _SHARED not in os.environ:
        atexit.register(share_place())
    owner, folder = os.environ[_SHARED].split(" ", 1)
    return int(owner), Path(folder)


def share_place() -> Callable[[], None]:
    """Share a place with the processes that this one starts; returns what removes it in the end."""
    folder = tempfile.TemporaryDirectory(prefix="merlin-tests-")
    os.environ[_SHARED] = f"{os.getpid()} {folder.name}"
    return folder.cleanup


@functools.cache
def _warm_process(owner: int, folder: Path, loaded: tuple[str, ...]) -> str:
    address = folder / hashlib.sha256(" ".join(loaded).encode()).hexdigest()[:16]
    with address.with_suffix(".lock").open("w") as lock, socket.socket(*_SOCKET) as listening:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not address.exists():
            listening.bind(str(address))
            listening.listen(64)
            # it works in /, which no test removes, and which holds no configuration
            subprocess.Popen(
                [sys.executable, SUPPORT / "warm_process.py", str(listening.fileno()), str(owner), *loaded],
                pass_fds=[listening.fileno()],
                stdin=subprocess.DEVNULL,
                # no threads besides the main one, which forks
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                cwd="/",
                start_new_session=True,
            )
    return str(address)


class WarmCommand(WarmProcess):
    """A running command, which leads a session by default, and what it prints; for tests that kill it or look on."""

    def __init__(
        self,
        kind: str,
        argv: Sequence[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        is_session: bool = True,
        loaded: Sequence[str] = COMMANDS,
    ) -> None:
        """All are those of `WarmProcess`."""
        self._files = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115  they close with this object
        out, err = (file.fileno() for file in self._files)
        words = [str(word) for word in argv]
        env = os.environ if env is None else env
        super().__init__(
            kind, words, cwd=cwd, env=env, output=out, errors=err, is_session=is_session, loaded=loaded
        )

    def printed(self) -> tuple[str, str]:
        """What it has printed so far, on stdout and stderr."""
        fds = [file.fileno() for file in self._files]
        out, err = (os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace") for fd in fds)
        return out, err

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it has printed, after its end. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        return self.printed()
