"""A dashboard without a server: its application, asked as a browser or a program would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from merlin.dashboard.app import make_app
from merlin.dashboard.hosts import host_names
from merlin.dashboard.hub import Hub
from merlin.dashboard.security import Door
from merlin.dashboard.tokens import Token

TOKEN = "t0ken-" + "x" * 32
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@contextmanager
def dashboard_client(
    roots: Sequence[Path], *, named: Sequence[Path] = (), base_url: str = "http://127.0.0.1:8765", **door: Any
) -> Iterator[TestClient]:
    """A client of a dashboard that shows these studies; other keywords are those of `Door`."""
    door = {"hosts": host_names("127.0.0.1"), "port": 8765, **door}
    app = make_app(Hub(roots, named), Door(token=Token(TOKEN), **door))
    with TestClient(app, base_url=base_url, follow_redirects=False, raise_server_exceptions=False) as client:
        yield client
