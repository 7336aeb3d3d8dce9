"""A relay between clients and a server that can cut, freeze, or tell when so many bytes have passed."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from servers import HOST


class Tripwire:
    """Listens on a port of its own and relays every connection to `target`, which is a port of this host.

    With `trip_at` bytes from clients relayed, `action` is called once, before any further byte is.
    """

    def __init__(
        self, target: int, *, trip_at: int | None = None, action: Callable[[], None] = lambda: None
    ) -> None:
        self._target, self._trip_at, self._action = target, trip_at, action
        self.num_bytes = 0  # from clients, so far
        self.has_tripped = False
        self._lock = threading.Lock()
        self._open = threading.Event()  # bytes flow
        self._open.set()
        self._is_closed = False
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Connections stay open, new ones are accepted, and no byte comes through."""
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    def cut(self) -> None:
        """Reset every connection."""
        for sock in list(self._sockets):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._open.set()
        self.cut()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection((HOST, self._target))
            except OSError:
                continue
            self._sockets |= {client, server}
            threading.Thread(target=self._relay, args=(client, server), daemon=True).start()

    def _relay(self, client: socket.socket, server: socket.socket) -> None:
        pairs = {client: server, server: client}
        with client, server, suppress(OSError):
            while not self._is_closed:
                for source in select.select(list(pairs), [], [])[0]:
                    self._open.wait()
                    data = source.recv(1 << 16)
                    if not data:
                        return
                    pairs[source].sendall(self._pass(data) if source is client else data)
        self._sockets -= {client, server}

    def _pass(self, data: bytes) -> bytes:
        """Count what a client sends; at the wire, only what lies before it goes through."""
        with self._lock:
            before = self.num_bytes
            self.num_bytes += len(data)
            if self._trip_at is None or self.has_tripped or self.num_bytes < self._trip_at:
                return data
            self.has_tripped = True
        self._action()
        return data[: self._trip_at - before]

    def __enter__(self) -> Tripwire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
