"""`merlin dashboard` as a process, and programs that ask it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import httpx
from commands import WarmProcess
from servers import die_with_us
from waiting import wait_until

LIMIT_S = 60.0


@dataclass
class LiveDashboard:
    """A dashboard that is ready, and a client that has its token."""

    process: subprocess.Popen[bytes] | WarmProcess
    errors: IO[bytes]  # what it has written to stderr
    url: str  # with the token
    port: int
    token: str
    client: httpx.Client

    def get(self, address: str) -> Any:
        """The JSON at an address."""
        answer = self.client.get(address)
        assert answer.status_code == 200, (address, answer.status_code, answer.text)
        return answer.json()

    def wait_for_state(self, id: str, *states: str) -> dict[str, Any]:
        """Wait until a study is in one of these states; returns its page."""
        page: dict[str, Any] = wait_until(
            lambda: (found := self.get(f"/api/study/{id}"))["state"] in states and found, self.process.poll
        )
        return page

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Tell the dashboard to end; returns its exit code."""
        self.process.send_signal(by)
        return self.process.wait(LIMIT_S)


@contextmanager
def live_dashboard(
    folder: Path,
    *words: str | Path,
    env: Mapping[str, str] | None = None,
    verify: Any = True,
    is_warm: bool = True,
) -> Iterator[LiveDashboard]:
    """`merlin dashboard …` in `folder`, on a free port unless one is given; killed if it is still there at the end.

    It starts from modules that are loaded already, or with `is_warm` False as users start it.
    """
    argv = ["dashboard", "--json", *(() if "--port" in words else ("--port", "0")), *map(str, words)]
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as errors, open(reading) as said:
        with open(writing, "wb") as output:
            process = _start(argv, folder, {**os.environ, **(env or {})}, output, errors, is_warm)
        try:
            line = said.readline()
            assert line, f"it ended with {process.wait(LIMIT_S)}: {text_of(errors)}"
            facts = json.loads(line)
            base, _, token = facts["url"].partition("?token=")
            headers = {"Authorization": f"Bearer {token}"}
            with httpx.Client(base_url=base, headers=headers, timeout=LIMIT_S, verify=verify) as client:
                yield LiveDashboard(process, errors, facts["url"], facts["port"], token, client)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def _start(
    argv: list[str], folder: Path, env: dict[str, str], output: IO[bytes], errors: IO[bytes], is_warm: bool
) -> subprocess.Popen[bytes] | WarmProcess:
    if is_warm:
        return WarmProcess(
            "merlin", argv, cwd=folder, env=env, output=output.fileno(), errors=errors.fileno()
        )
    process = subprocess.Popen(
        [sys.executable, "-m", "merlin.cli", *argv],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
    )
    die_with_us(process.pid)
    return process


def text_of(file: IO[bytes]) -> str:
    """Everything that a file without a name holds."""
    file.seek(0)
    return file.read().decode()


def events_of(client: httpx.Client, address: str) -> Iterator[tuple[str, Any]]:
    """Kind and value of the server-sent events at an address, until the stream ends."""
    with client.stream("GET", address) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield kind, json.loads(line.removeprefix("data: "))
