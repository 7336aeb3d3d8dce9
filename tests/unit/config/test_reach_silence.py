"""Servers that are not there, do not answer, or are something else; no server is needed for these."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from merlin.config.model import Endpoint, Kind, Secret, Tls
from merlin.config.reach import TIMEOUT_S, Reach, check_endpoint, explain

KINDS: tuple[Kind, ...] = ("redis", "rediss", "amqp", "amqps")
PASSWORD = "hunter2"
LONG_S = 100.0  # for answers that come at once, but for a machine that is busy or loads a client library


def endpoint(kind: Kind, port: int, host: str = "127.0.0.1") -> Endpoint:
    tls = Tls() if kind in ("rediss", "amqps") else None
    return Endpoint(
        kind=kind, host=host, port=port, username="joe", password=Secret(PASSWORD), vhost="v", tls=tls
    )


def checked(target: Endpoint, timeout_s: float = TIMEOUT_S) -> Reach:
    """The answer, which must come although nobody else gives one, name the place, and hold no secret."""
    reach = check_endpoint(target, timeout_s)
    assert target.address in reach.detail
    assert PASSWORD not in f"{reach.detail}{reach.hint}"
    return reach


@contextmanager
def listener(answer: bytes | None, *, accept: bool = True) -> Iterator[int]:
    """A port where somebody accepts and then says this, or nothing at all."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        opened: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                opened.append(connection)
                if answer is not None:
                    with suppress(OSError):  # the other side may be gone by now
                        connection.recv(100)
                        connection.sendall(answer)
                    connection.close()

        if accept:
            threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        for connection in opened:
            connection.close()


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port where nobody listens, and where nobody else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_listens(kind):
    with deaf_port() as port:
        reach = checked(endpoint(kind, port), LONG_S)
    assert not reach.ok
    assert "nothing listens" in reach.detail
    assert reach.hint


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_accepts_and_is_silent(kind):
    with listener(None) as port:
        reach = checked(endpoint(kind, port))
    assert not reach.ok
    assert "answer" in reach.detail
    assert reach.hint


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_queue_of_connections_looks_like_a_firewall(kind):
    with listener(None, accept=False) as port:
        waiting = [socket.socket() for _ in range(8)]
        for connection in waiting:
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.1", port))
        reach = checked(endpoint(kind, port))
        for connection in waiting:
            connection.close()
    assert not reach.ok
    assert "answer" in reach.detail


@pytest.mark.parametrize("kind", KINDS)
def test_something_else_listens_there(kind):
    with listener(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        reach = checked(endpoint(kind, port))
    assert not reach.ok
    assert reach.hint


@pytest.mark.parametrize("kind", KINDS)
def test_a_server_that_hangs_up(kind):
    with listener(b"") as port:
        reach = checked(endpoint(kind, port))
    assert not reach.ok
    assert reach.hint


@pytest.mark.parametrize("kind", ["redis", "amqps"])
def test_a_host_that_does_not_exist(kind):
    assert not checked(endpoint(kind, 1, "no-such-host.invalid")).ok


def test_a_lookup_that_takes_forever_is_given_up(monkeypatch):
    forever = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: forever.wait())
    reach = check_endpoint(endpoint("redis", 1, "h"), timeout_s=0.2)
    forever.set()
    assert not reach.ok
    assert "0.2 s" in reach.detail


def test_a_socket_that_is_not_there(tmp_path):
    reach = check_endpoint(Endpoint(kind="redis+socket", socket_path=str(tmp_path / "r.sock")), LONG_S)
    assert "no such socket" in reach.detail


def test_a_certificate_file_that_is_none_is_said(tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    tls = Tls(ca_certs=str(tmp_path / "ca.pem"))
    with listener(b"") as port:
        for kind in ("rediss", "amqps"):
            target = Endpoint(kind=kind, host="127.0.0.1", port=port, tls=tls)  # type: ignore[arg-type]
            reach = checked(target, LONG_S)
            assert "certificate file" in reach.detail


def test_an_error_nobody_foresaw_is_shown_without_the_password():
    detail, _ = explain(RuntimeError(f"strange {PASSWORD}"), endpoint("redis", 1))
    assert "strange" in detail
    assert PASSWORD not in detail


def test_the_innermost_reason_is_the_one_that_is_told():
    try:
        try:
            raise ssl.SSLCertVerificationError(1, "verify failed")
        except ssl.SSLError as inner:
            raise ConnectionError("Error 1 connecting") from inner
    except ConnectionError as error:
        detail, hint = explain(error, endpoint("rediss", 1))
    assert "cannot be trusted" in detail
    assert "ca_certs" in hint


def test_an_authority_that_newer_pythons_refuse_is_explained():
    error = ssl.SSLCertVerificationError(1, "verify failed")
    error.verify_message = "CA cert does not include key usage extension"
    detail, hint = explain(error, endpoint("rediss", 1))
    assert "key usage extension" in detail and "Python 3.13" in hint
