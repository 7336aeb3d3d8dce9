"""JSON lines between the command and its worker processes.

====================  =======================================================================
to a worker           ``{"op": "run", "chunk": …}``, ``{"op": "stop"}`` (interrupt what runs and
                      exit), ``{"op": "exit"}`` (when idle)
from a worker         ``{"op": "ready"}``, ``{"op": "progress", "ended": n, "failed": n}``,
                      ``{"op": "result", …}``, ``{"op": "error", "message": …}`` and then it exits
====================  =======================================================================

While a chunk runs nothing is sent to its worker but ``stop``, so a readable socket means: stop. A worker started
with ``--fenced`` asks ``{"op": "commit"}`` before each commit and waits for ``{"op": "go"}``, or ``{"op": "void"}``
when its chunk has been given to another worker.
"""

from __future__ import annotations

import json
import select
import socket
from dataclasses import fields
from typing import Any

from merlin.errors import ExecutionError
from merlin.study.tasks import Chunk, ChunkResult, Deferred

Message = dict[str, Any]

_CHUNK_DEFAULTS = {f.name: f.default for f in fields(Chunk) if f.name not in ("instance", "lo", "hi")}


class Channel:
    """One end of a stream socket that carries JSON lines."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.is_closed = False  # the other end is gone
        self._pending = b""

    def fileno(self) -> int:
        return self.sock.fileno()

    def send(self, message: Message) -> bool:
        """Send one message, blocking; False when the other end is gone, which `receive` tells, too."""
        try:
            self.sock.sendall(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        except OSError:
            return False
        return True

    def receive(self, *, wait: bool = False) -> list[Message]:
        """Every complete message that has arrived; with `wait`, at least one unless the other end is gone.

        Raises ExecutionError for what is no message.
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

    def has_news(self) -> bool:
        """Whether `receive` would return something or find the other end gone."""
        poll = select.poll()
        poll.register(self.sock, select.POLLIN)
        return bool(poll.poll(0))

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


def chunk_to_json(chunk: Chunk) -> Message:
    """What differs from the defaults."""
    out: Message = {"instance": chunk.instance, "lo": chunk.lo, "hi": chunk.hi}
    for name, default in _CHUNK_DEFAULTS.items():
        value = getattr(chunk, name)
        if value != default:
            out[name] = value
    return out


def chunk_from_json(data: Message) -> Chunk:
    pairs = {name: tuple((a, b) for a, b in data.get(name, ())) for name in ("holes", "absent_rows")}
    return Chunk(**(data | pairs))


def result_to_json(result: ChunkResult) -> Message:
    """All but the chunk, which the receiver knows."""
    return {
        "runs": result.runs,
        "deferred": [{"chunk": chunk_to_json(d.chunk), "delay_s": d.delay_s} for d in result.deferred],
        "busy_s": result.busy_s,
        "stop": result.stop,
        "note": result.note,
    }


def result_from_json(chunk: Chunk, data: Message) -> ChunkResult:
    """Raises ExecutionError if the message is not what `result_to_json` makes."""
    try:
        return ChunkResult(
            chunk=chunk,
            runs=tuple((int(a), int(b), int(outcome)) for a, b, outcome in data["runs"]),
            deferred=tuple(
                Deferred(chunk=chunk_from_json(d["chunk"]), delay_s=d["delay_s"]) for d in data["deferred"]
            ),
            busy_s=float(data["busy_s"]),
            stop=data["stop"],
            note=data["note"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ExecutionError(f"a worker sent a result that makes no sense: {error!r}") from error
