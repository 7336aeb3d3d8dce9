"""The notices that are being sent, each by a process of its own, so that other work can go on."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Generic, TypeVar

from msgspec import Struct

from merlin.base.records import to_plain
from merlin.notify.notice import Notice
from merlin.plan.notify_rule import NotifyRule

MOST_S = 60.0  # for all tries; a process that hangs longer, in spite of its own time limits, is killed
_MOST_CHARS = 500
T = TypeVar("T")


class _Sending(Struct, Generic[T]):
    what: T
    process: subprocess.Popen[bytes]
    until: float  # monotonic


class Sent(Struct, Generic[T], frozen=True):
    """How the sending of a notice ended; `error` says why it failed."""

    what: T
    error: str


class Outbox(Generic[T]):
    """Sends notices; `what` stands for each of them. One thread uses it."""

    def __init__(self) -> None:
        self._sending: list[_Sending[T]] = []
        self._failed: list[Sent[T]] = []  # notices whose process could not even be started

    @property
    def is_empty(self) -> bool:
        return not (self._sending or self._failed)

    def send(self, what: T, rule: NotifyRule, notice: Notice) -> None:
        """Start to send it."""
        try:
            with tempfile.TemporaryFile() as given:
                given.write(json.dumps({"rule": to_plain(rule), "notice": to_plain(notice)}).encode())
                given.seek(0)
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "merlin.notify"],
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError as error:
            self._failed.append(Sent(what, f"no process can be started: {error}"))
            return
        self._sending.append(_Sending(what, process, time.monotonic() + MOST_S))

    def ended(self) -> list[Sent[T]]:
        """What has been sent, or failed, since the last call."""
        out, self._failed = self._failed, []
        for sending in list(self._sending):
            code = sending.process.poll()
            if code is None and time.monotonic() >= sending.until:
                sending.process.kill()
                code = sending.process.wait()
            if code is not None:
                self._sending.remove(sending)
                out.append(Sent(sending.what, _error(sending.process, code)))
        return out

    def wait(self) -> list[Sent[T]]:
        """Wait for the end of all that is being sent."""
        for sending in self._sending:
            with suppress(subprocess.TimeoutExpired):
                sending.process.wait(max(0.0, sending.until - time.monotonic()))
        return self.ended()

    def leave(self) -> None:
        """Leave the notices that are being sent alone; whether they arrive is not reported."""
        for sending in self._sending:
            assert sending.process.stdout is not None
            sending.process.stdout.close()
        self._sending.clear()

    def kill(self) -> None:
        """Give up what is being sent."""
        for sending in self._sending:
            sending.process.kill()
            sending.process.wait()
        self.leave()


def _error(process: subprocess.Popen[bytes], code: int) -> str:
    """Why the notice was not sent. The process has ended, and no other process has its output open."""
    assert process.stdout is not None
    with process.stdout:
        said = process.stdout.read().decode("utf-8", "replace").strip()[:_MOST_CHARS]
    return "" if code == 0 else said or f"the process that sends it ended with {code}"
