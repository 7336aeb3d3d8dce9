"""Under which name others find a private server."""

from __future__ import annotations

import socket

import pytest

from merlin.server.folder import reachable_host


def name_this_machine(monkeypatch: pytest.MonkeyPatch, fqdn: str, name: str, **addresses: str) -> None:
    def look_up(host: str, port: object) -> list[tuple]:
        if host not in addresses:
            raise socket.gaierror(host)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (addresses[host], 0))]

    monkeypatch.setattr(socket, "getfqdn", lambda: fqdn)
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)


def test_an_address_is_reached_as_itself() -> None:
    assert [reachable_host(host) for host in ("127.0.0.1", "10.1.2.3", "node7")] == [
        "127.0.0.1",
        "10.1.2.3",
        "node7",
    ]


def test_all_addresses_are_reached_under_a_name_that_others_know(monkeypatch) -> None:
    name_this_machine(monkeypatch, "localhost", "node7", localhost="127.0.0.1", node7="10.1.2.3")
    assert reachable_host("0.0.0.0") == "node7"


def test_a_name_for_this_machine_alone_is_not_given_to_others(monkeypatch) -> None:
    name_this_machine(monkeypatch, "localhost", "vm", localhost="127.0.0.1", vm="127.0.0.1")
    found = reachable_host("0.0.0.0")
    assert not found.startswith(("127.", "::1", "localhost"))
