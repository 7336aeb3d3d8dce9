"""Runs the application: a port, TLS, and an end without delay."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import uvicorn
from msgspec import Struct
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from merlin.dashboard.hub import Hub
from merlin.errors import ConfigError, ExecutionError, UsageError

FIRST_PORT = 8765
NUM_PORTS = 100  # that are tried, from the first one on
LAST_ANSWERS_S = 3  # for answers under way when the dashboard ends
MOST_CONNECTIONS = 1000
FIRST_REQUEST_S = 10.0  # for a connection to send one
TICK_S = 1.0
_TAKEN = (errno.EADDRINUSE, errno.EACCES)


class Tls(Struct, frozen=True, kw_only=True):
    """The files of a certificate and its key."""

    certfile: Path
    keyfile: Path

    def check(self) -> None:
        """Raise ConfigError if they cannot be used."""
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(self.certfile, self.keyfile)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the certificate {self.certfile} with the key {self.keyfile} cannot be used: {error}"
            ) from error


def listen(host: str, port: int | None) -> socket.socket:
    """A socket that listens at `host` and `port` (0: any that is free; None: the first that is free from 8765 on).

    Raises ExecutionError if there is none, UsageError if this machine has no such address.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"--host {host!r} is no address of this machine: {error.strerror}") from error
    ports = range(FIRST_PORT, FIRST_PORT + NUM_PORTS) if port is None else [port]
    for number in ports:
        opened = socket.socket(family, kind)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            opened.bind((address[0], number))
            opened.listen(128)
        except OSError as error:
            opened.close()
            if error.errno not in _TAKEN:
                raise UsageError(f"cannot listen at {host} port {number}: {error.strerror}") from error
        else:
            return opened
    which = f"port {port} is" if port is not None else f"ports {ports[0]} to {ports[-1]} are"
    raise ExecutionError(
        f"{which} taken or not allowed at {host}; choose another with --port N (0: any that is free)"
    )


class _Connection(H11Protocol):
    """Ends if no request has come in time, so that idle connections do not take the places of all."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.loop.call_later(FIRST_REQUEST_S, self._end_if_idle)

    def _end_if_idle(self) -> None:
        has_request = bool(self.cycle)  # None, whatever its type says, before the first one
        if not has_request and not self.transport.is_closing():
            self.transport.close()


class _Server(uvicorn.Server):
    """Ends all streams as soon as a signal asks for the end, and then itself; it does not raise the signal again."""

    def __init__(self, config: uvicorn.Config, hub: Hub, on_ready: Callable[[], object]) -> None:
        super().__init__(config)
        self._hub, self._on_ready = hub, on_ready
        self._told = asyncio.Event()

    async def main_loop(self) -> None:
        """Wait for the signal to end; the clock of the Date headers ticks once a second, not ten times."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._told.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End; a second signal changes nothing, since open answers get a few seconds at most."""
        self.should_exit = True
        self._told.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.close()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGINT, signal.SIGTERM)
        for number in signals:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)


def serve(
    app: ASGIApp, hub: Hub, opened: socket.socket, tls: Tls | None, on_ready: Callable[[], object]
) -> None:
    """Serve until SIGINT or SIGTERM; `on_ready` is called when the first request would be answered."""
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,  # the guard reads these headers, if it trusts the proxy
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=LAST_ANSWERS_S,
        ssl_certfile=None if tls is None else tls.certfile,
        ssl_keyfile=None if tls is None else str(tls.keyfile),
    )
    asyncio.run(_Server(config, hub, on_ready).serve(sockets=[opened]))
