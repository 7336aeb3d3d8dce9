"""A private Redis, and workers of ours and of the peer on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from measure import MERLIN
from peer import PEER, peer_environment, peer_merlin
from servers import PASSWORD, RedisServer

APP_YAML = """
broker: {{name: redis, username: "", server: {host}, port: {port}, db_num: 0, password: {password}}}
results_backend:
  {{name: redis, username: "", server: {host}, port: {port}, db_num: 0, password: {password}, encryption_key: {key}}}
"""


def write_config(home: Path, host: str, port: int) -> None:
    """Let commands of a user with this home find the Redis there."""
    folder = home / ".merlin"
    folder.mkdir(parents=True, exist_ok=True)
    password = folder / "redis.pass"
    password.write_text(PASSWORD)
    text = APP_YAML.format(host=host, port=port, password=password, key=folder / "encrypt_data_key")
    (folder / "app.yaml").write_text(text)


class Deployment:
    """Where commands find the server, and the workers that were started."""

    def __init__(self, folder: Path, server: RedisServer, *, is_peer: bool) -> None:
        self.folder, self.server, self.is_peer = folder, server, is_peer
        self.workers: list[subprocess.Popen[bytes]] = []
        write_config(folder / "home", "127.0.0.1", server.port)
        self.env = peer_environment() if is_peer else dict(os.environ)
        self.env = {k: v for k, v in self.env.items() if not k.startswith("MERLIN_")}
        self.env |= {"HOME": str(folder / "home"), "C_FORCE_ROOT": "1"}
        self.merlin = peer_merlin() if is_peer else MERLIN

    def command(self, *words: str) -> float:
        """Run a merlin command to its end; returns its seconds."""
        start = time.perf_counter()
        done = subprocess.run(
            [self.merlin, *words], cwd=self.folder, env=self.env, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"merlin {' '.join(words)}: {done.stdout[-1000:]}{done.stderr[-2000:]}")
        return time.perf_counter() - start

    def start_worker(
        self, name: str = "w", queue: str = "merlin", *, log_level: str = "WARNING", **env: str
    ) -> subprocess.Popen[bytes]:
        """One Celery worker with two processes at work, in the foreground of a session of its own."""
        args = [
            "-n",
            f"{name}.%h",
            "--concurrency",
            "2",
            "-l",
            log_level,
            "--without-gossip",
            "--without-mingle",
        ]
        if self.is_peer:
            app, python = "merlin", str(PEER / "bin" / "python")
            args += ["--prefetch-multiplier", "1", "-Ofair", "-Q", f"[merlin]_{queue}"]
        else:
            app, python = "merlin.execution.distributed.app", sys.executable
            args += ["-Q", f"[merlin]_{queue}@{self.namespace()}"]
        with open(self.folder / f"{name}.log", "ab") as log:
            worker = subprocess.Popen(
                [python, "-m", "celery", "-A", app, "worker", *args],
                cwd=self.folder, env={**self.env, **env}, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.workers.append(worker)
        return worker

    def namespace(self) -> str:
        from merlin.config.load import load_config

        return load_config(self.folder / "home/.merlin/app.yaml", self.env).namespace

    def client(self) -> Any:
        return self.server.client()

    def workers_cpu_s(self) -> float:
        """CPU seconds of the workers and of everything that they started, so far."""
        total = 0.0
        for worker in map(psutil.Process, [worker.pid for worker in self.workers]):
            for process in [worker, *worker.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system + times.children_user + times.children_system
        return total

    def stop_workers(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        self.workers.clear()


@contextmanager
def deployment(folder: Path, *, is_peer: bool = False) -> Iterator[Deployment]:
    """A fresh server in `folder`; everything is stopped at the end."""
    with RedisServer(folder / "redis") as server:
        made = Deployment(folder, server, is_peer=is_peer)
        try:
            yield made
        finally:
            made.stop_workers()


def wait_for(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Look every 20 ms until it holds."""
    deadline = time.perf_counter() + limit_s
    while not condition():
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(0.02)
