"""Clients of a dashboard of the studies in `tmp_path`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from dashboard_client import BEARER, TOKEN, dashboard_client
from starlette.testclient import TestClient


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merlin.dashboard.followed.PERIOD_S", 0.02)
    monkeypatch.setattr("merlin.dashboard.followed.CURVE_S", 0.04)


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., TestClient]]:
    """Makes clients; keywords are those of `Door`."""
    with ExitStack() as stack:

        def connect(**door: Any) -> TestClient:
            return stack.enter_context(dashboard_client([tmp_path], **door))

        yield connect


@pytest.fixture
def program(connect: Callable[..., TestClient]) -> TestClient:
    """A program that has the token."""
    client = connect()
    client.headers.update(BEARER)
    return client


@pytest.fixture
def browser(connect: Callable[..., TestClient]) -> TestClient:
    """A browser that has opened the address with the token."""
    client = connect()
    assert client.get("/", params={"token": TOKEN}).status_code == 303
    return client
