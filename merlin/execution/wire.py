"""JSON lines between the command and its worker processes: each a record of this module, with its name as "op".

While a chunk runs, its worker gets no message except `Stop`, so a readable socket means: stop.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import TypeVar, cast

import msgspec
from msgspec import Struct

from merlin.base.records import as_kind, to_plain
from merlin.errors import ExecutionError
from merlin.execution.assignment import Assignment
from merlin.execution.waiting import is_readable
from merlin.plan.tasks import Chunk, ChunkResult

T = TypeVar("T")


class _Message(Struct, frozen=True, tag_field="op", tag=str.lower, omit_defaults=True):
    """A message; what it is called on the wire is the name of its class."""


class Run(_Message, frozen=True):
    """To a worker: run a chunk, on these cores and GPUs if they are its own."""

    chunk: Chunk
    assignment: Assignment | None = None


class Stop(_Message, frozen=True):
    """To a worker: interrupt what runs, and exit."""


class Exit(_Message, frozen=True):
    """To a worker: exit when idle."""


class Ready(_Message, frozen=True):
    """From a worker: it waits for a chunk."""


class Progress(_Message, frozen=True):
    """From a worker: how many tasks of its chunk have ended, and how many of these failed."""

    ended: int
    failed: int


class Result(_Message, frozen=True):
    """From a worker: its chunk has ended."""

    result: ChunkResult


class Error(_Message, frozen=True):
    """From a worker, which then exits: what no task is to blame for."""

    message: str


class Crash(_Message, frozen=True):
    """From a worker, which then exits: why it dies."""

    message: str


class Commit(_Message, frozen=True):
    """From a worker that was started with ``--fenced``, before each commit: may it?"""


class Go(_Message, frozen=True):
    """The answer: it may."""


class Void(_Message, frozen=True):
    """The answer if its chunk has been given to another worker."""


Message = Run | Stop | Exit | Go | Void | Ready | Progress | Result | Error | Crash | Commit


class MessageChannel:
    """One end of a stream socket that carries JSON lines."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_closed = False  # the other end is closed
        self._pending = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message) -> None:
        """Send one message, blocking. If the other end is closed, `receive` notices it."""
        with suppress(OSError):
            self.sock.sendall(json.dumps(to_plain(message), separators=(",", ":")).encode() + b"\n")

    def receive(self, *, wait: bool = False) -> list[Message]:
        """Every complete message that has arrived; with `wait`, at least one unless the other end is closed.

        Raises ExecutionError for data that is not a message.
        """
        out: list[Message] = []
        while not self.is_closed:
            block = wait and not out
            try:
                data = self.sock.recv(1 << 20, 0 if block else socket.MSG_DONTWAIT)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.is_closed = True
            *lines, self._pending = (self._pending + data).split(b"\n")
            out += map(_parse, lines)
        return out

    def has_input(self) -> bool:
        """Return whether `receive` would return a message or find the other end closed."""
        return is_readable(self.fileno())

    def close(self) -> None:
        self.sock.close()


def _parse(line: bytes) -> Message:
    try:
        return as_kind(json.loads(line), cast("type[Message]", Message))
    except ValueError as error:
        what = "what came from the other process is no message"
        raise ExecutionError(f"{what}: {line[:60]!r}: {error}") from error


def received(data: object, kind: type[T]) -> T:
    """Decode a record that another process sent. Raises ExecutionError if it does not fit `kind`."""
    try:
        return as_kind(data, kind)
    except msgspec.ValidationError as error:
        raise ExecutionError(
            f"another process sent a {kind.__name__} that makes no sense: {error}"
        ) from error
