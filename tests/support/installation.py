"""One user with a home, a broker and workers of their own: what the fault tests act upon.

Commands are the real ones. Workers are started from the lines that `merlin run-workers --echo` prints, so that the
tests hold their processes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from commands import WarmProcess
from live_processes import live_processes
from servers import RabbitServer, RedisServer, die_with_us
from user_home import UserHome
from waiting import wait_until

from merlin.base.processes import all_sessions, children
from merlin.config.load import require_config
from merlin.config.model import Config

LEASE_S = 3.0  # instead of a minute, so that a test sees many of them
STOP_S = 90.0
ANY_NAME = "worker-without-a-name"


class Worker:
    """A Celery worker that leads a process group; each of its other processes leads a session."""

    process: subprocess.Popen[bytes] | WarmProcess

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str],
        *,
        is_warm: bool = True,
    ) -> None:
        """Start it from modules that are loaded already, or with `is_warm` False as users do."""
        self.name, self.command = name, command
        self.log = folder / f"{name}.log"
        self._frozen: list[int] = []
        with self.log.open("ab") as log:
            if is_warm:
                self.process = WarmProcess(
                    "module",
                    command[command.index("-m") + 1 :],
                    cwd=folder,
                    env=environment,
                    output=log.fileno(),
                    is_session=True,
                )
            else:
                self.process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        die_with_us(self.process.pid)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def children(self) -> list[int]:
        """The worker processes, which run tasks: new Pythons, and copies that the worker's server made."""
        found = []
        for pid in children(self.pid):
            with suppress(OSError):
                is_new = b"merlin.execution.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
                found += [pid] if is_new else children(pid)
        return found

    @property
    def is_busy(self) -> bool:
        """Whether its worker processes have processes of their own, which tasks run in."""
        return any(children(child) for child in self.children())

    def tree(self) -> list[int]:
        """Every process of it: its own session, and those of its worker processes with their tasks."""
        sessions = all_sessions()
        leaders = dict.fromkeys([self.pid, *children(self.pid), *self.children()])
        return [process.pid for leader in leaders for process in sessions.get(leader, [])]

    def signal(self, number: int, *, whole: bool = False) -> None:
        """Send a signal to the Celery worker, or to its whole tree."""
        _signal(self.tree() if whole else [self.pid], number)

    @property
    def is_stopped(self) -> bool:
        return bool(self._frozen)

    def freeze(self, *, whole: bool) -> None:
        """SIGSTOP the Celery worker, or its whole tree."""
        self._frozen = self.tree() if whole else [self.pid]
        _signal(self._frozen, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let stopped processes go on, even if the Celery worker itself was killed meanwhile."""
        _signal(self._frozen, signal.SIGCONT)
        self._frozen = []

    def kill(self, *, whole: bool = False) -> None:
        """SIGKILL the Celery worker; with `whole`, everything at once, as when its machine dies."""
        if whole:
            self.signal(signal.SIGSTOP, whole=True)  # so that none of them can react while the others die
        self.signal(signal.SIGKILL, whole=whole)
        self._reap()

    def terminate(self, limit_s: float = STOP_S) -> int:
        """SIGTERM, and wait; returns the exit code, 0 also for a worker that was too young to handle the signal."""
        self.thaw()
        was_ready = b" ready." in self.log.read_bytes()
        with suppress(ProcessLookupError):
            self.process.terminate()
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill(whole=True)
            raise AssertionError(
                f"{self.name} did not end within {limit_s:g} s of SIGTERM\n{self.tail()}"
            ) from None
        self._reap()
        return 0 if code == -signal.SIGTERM and not was_ready else code

    def _reap(self) -> None:
        self.process.wait()
        die_with_us(self.pid, no_longer=True)

    def tail(self) -> str:
        end = self.log.read_text(errors="replace")[-3000:]
        return f"--- {self.name} (pid {self.pid}, exit code {self.process.poll()}), its log ends:\n{end}"


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


class Installation(UserHome):
    """An installation, as the module describes it; `env` is that of commands and workers."""

    def __init__(
        self,
        folder: Path,
        broker: RedisServer | RabbitServer,
        backend: RedisServer | None = None,
        *,
        lease_s: float = LEASE_S,
    ) -> None:
        self.broker = broker
        self.lease_s = lease_s
        self.redis = broker if isinstance(broker, RedisServer) else backend
        assert self.redis is not None, "RabbitMQ carries messages; progress needs Redis"
        self.workers: list[Worker] = []
        self._num_started = 0
        self._launches: dict[tuple[Path, int], list[str]] = {}
        self.home = folder / "home"
        super().__init__(
            folder,
            HOME=str(self.home),
            PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            MERLIN_BROKER_URL=broker.url,
            MERLIN_BACKEND_URL=self.redis.url,
            MERLIN_LEASE_S=str(lease_s),
        )
        self.home.mkdir()

    def config(self) -> Config:
        return require_config(self.env, cwd=self.folder)

    def start_command(self, *argv: str | Path, **more: str) -> subprocess.Popen[str]:
        """Start `merlin …` as users do; `more` are environment variables."""
        return subprocess.Popen(
            [sys.executable, "-m", "merlin.cli", *map(str, argv)],
            cwd=self.folder,
            env=self.env | more,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def restart(self, workspace: Path, *words: str) -> None:
        """`merlin restart`; again as long as a worker publishes the study itself, or has not noticed its end yet."""

        def accepted() -> bool:
            done = self.merlin("restart", workspace, *words, code=None)
            is_refused = any(text in done.stderr for text in ("in use by a live run", " still run; wait"))
            assert is_refused or done.returncode == 0, f"{done.stdout}\n{done.stderr}"
            return done.returncode == 0

        wait_until(accepted, self.describe)

    def start_worker(self, spec: Path, *, concurrency: int = 2, **more: str) -> Worker:
        """One Celery worker that serves all queues of the spec; `more` are environment variables.

        They may include variables that a process reads only at its start, such as PYTHONPATH.
        """
        self._num_started += 1
        name = f"w{self._num_started}"
        command = [word.replace(ANY_NAME, name) for word in self._launch(spec, concurrency)]
        worker = Worker(name, command, self.folder, self.env | more, is_warm=not more)
        self.workers.append(worker)
        return worker

    def _launch(self, spec: Path, concurrency: int) -> list[str]:
        """The command line of a worker called `ANY_NAME`, asked for once."""
        if (spec, concurrency) not in self._launches:
            args = f"-n {ANY_NAME}.%h --concurrency {concurrency}"
            words = ("run-workers", spec, "--echo", "--json", "--worker-args", args)
            (launch,) = json.loads(self.merlin(*words).stdout)["workers"]
            self._launches[spec, concurrency] = launch["command"]
        return self._launches[spec, concurrency]

    def replace_workers(self, spec: Path, num: int) -> None:
        """Remove dead workers from the list, and start others until there are `num`."""
        self.workers = [worker for worker in self.workers if worker.is_alive]
        while len(self.workers) < num:
            self.start_worker(spec)

    def key(self, study_id: str, name: str) -> str:
        """What Redis holds of a study."""
        return f"merlin:{self.config().namespace}:{{{study_id}}}:{name}"

    def owner(self, study_id: str) -> Worker | None:
        """The worker that owns a study; None without an owner, or if it is a command or a dead worker."""
        with self.redis.client() as client:
            holder, until = client.hmget(self.key(study_id, "owner"), "holder", "until")
            seconds, _ = client.time()
        if not holder or int(until) < 1000 * seconds:
            return None
        name = holder.removeprefix("celery@").partition(".")[0]
        return next((worker for worker in self.workers if worker.name == name and worker.is_alive), None)

    def stop_workers(self) -> None:
        """Stop all workers in an orderly way; each must end with 0 and leave no process behind."""
        codes = {worker.name: worker.terminate() for worker in self.workers}
        assert set(codes.values()) <= {0}, f"{codes}\n{self.tails()}"
        self.workers = []
        wait_until(lambda: not self.processes(), self.processes)

    def processes(self) -> list[str]:
        """Command lines of live processes that work inside the folder, the servers left out."""
        servers = {self.broker.folder, self.redis.folder}
        return [
            str(process)
            for process in live_processes()
            if process.folder.is_relative_to(self.folder)
            and not any(process.folder.is_relative_to(folder) for folder in servers)
        ]

    def tails(self) -> str:
        return "\n".join(worker.tail() for worker in self.workers)

    def describe(self) -> str:
        """What Redis and the workers say, for a test that fails."""
        parts = [self.tails()]
        with suppress(Exception):
            parts.append(self._keys())
        return "\n".join(parts)

    def _keys(self) -> str:
        lines = []
        with self.redis.client() as client:
            for key in sorted(client.scan_iter(count=1000))[:200]:
                lines.append(f"{key}: {_value(client, key)}"[:500])
        return "--- keys of Redis\n" + "\n".join(lines)

    def close(self) -> None:
        """Kill every process that works inside the folder, whoever started it there."""
        for worker in self.workers:
            if worker.is_alive:
                worker.kill(whole=True)
        _signal([int(line.split()[0]) for line in self.processes()], signal.SIGKILL)


def _value(client: Any, key: str) -> object:
    match client.type(key):
        case "list":
            return f"list of {client.llen(key)}: {client.lrange(key, 0, 1)}"
        case "hash":
            return client.hgetall(key)
        case "zset":
            return client.zrange(key, 0, 20, withscores=True)
        case "set":
            return client.smembers(key)
        case "string":
            return client.get(key)
    return "?"


@contextmanager
def installation(
    folder: Path, broker: RedisServer | RabbitServer, backend: RedisServer | None = None, **options: Any
) -> Iterator[Installation]:
    """An installation whose workers are killed at the end, if the test has not stopped them."""
    made = Installation(folder, broker, backend, **options)
    try:
        yield made
    finally:
        made.close()
