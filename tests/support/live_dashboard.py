"""`merlin dashboard` as a process, and programs that ask it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from servers import die_with_us
from waiting import wait_until

LIMIT_S = 60.0


@dataclass
class LiveDashboard:
    """A dashboard that is ready, and a client that has its token."""

    process: subprocess.Popen[str]
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
            lambda: (found := self.get(f"/api/study/{id}"))["state"] in states and found, self.process
        )
        return page

    def end(self, by: signal.Signals = signal.SIGTERM) -> int:
        """Tell the dashboard to end; returns its exit code."""
        self.process.send_signal(by)
        return self.process.wait(LIMIT_S)


@contextmanager
def live_dashboard(
    folder: Path, *words: str | Path, env: Mapping[str, str] | None = None, verify: Any = True
) -> Iterator[LiveDashboard]:
    """`merlin dashboard …` in `folder`, on a free port unless one is given; killed if it is still there at the end."""
    ports = () if "--port" in words else ("--port", "0")
    process = subprocess.Popen(
        [sys.executable, "-m", "merlin.cli", "dashboard", "--json", *ports, *map(str, words)],
        cwd=folder,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    die_with_us(process.pid)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, f"it ended with {process.wait(LIMIT_S)}: {process.communicate()}"
        facts = json.loads(line)
        base, _, token = facts["url"].partition("?token=")
        headers = {"Authorization": f"Bearer {token}"}
        with httpx.Client(base_url=base, headers=headers, timeout=LIMIT_S, verify=verify) as client:
            yield LiveDashboard(process, facts["url"], facts["port"], token, client)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


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
