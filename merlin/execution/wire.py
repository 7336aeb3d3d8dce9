"""JSON lines between the command and its worker processes.

====================  =======================================================================
to a worker           ``{"op": "run", "chunk": …}``, with ``"assignment": …`` if the chunk gets cores or
                      GPUs, ``{"op": "stop"}`` (interrupt what runs and exit), ``{"op": "exit"}`` (when idle)
from a worker         ``{"op": "ready"}``, ``{"op": "progress", "ended": n, "failed": n}``,
                      ``{"op": "result", "result": …}``, ``{"op": "error", "message": …}`` and then
                      it exits
====================  =======================================================================

While a chunk runs, its worker gets no message except ``stop``, so a readable socket means: stop. A worker started
with ``--fenced`` asks ``{"op": "commit"}`` before each commit and waits for ``{"op": "go"}``, or ``{"op": "void"}``
when its chunk has been given to another worker.
"""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from merlin.base.records import as_kind
from merlin.errors import ExecutionError
from merlin.execution.waiting import is_readable

Message = dict[str, Any]
T = TypeVar("T")


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
            self.sock.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")

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
        message = json.loads(line)
        if isinstance(message, dict) and "op" in message:
            return message
    except ValueError:
        pass
    raise ExecutionError(f"what came from the other process is no message: {line[:60]!r}")


def received(data: object, kind: type[T]) -> T:
    """Decode a record that another process sent. Raises ExecutionError if it does not fit `kind`."""
    try:
        return as_kind(data, kind)
    except msgspec.ValidationError as error:
        raise ExecutionError(
            f"another process sent a {kind.__name__} that makes no sense: {error}"
        ) from error
