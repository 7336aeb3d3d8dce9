"""A Redis that lets everybody in: who is told, and when."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import run_merlin
from servers import HOST, RedisServer

from merlin.config import reach
from merlin.config.load import find_config
from merlin.config.model import Endpoint, Secret, Tls
from merlin.config.reach import check_endpoint
from merlin.views.doctor.servers import judge_reach


@pytest.fixture(scope="module")
def open_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("open"), appendonly=False, password=None) as server:
        yield server


class Settings:
    """What `CONFIG GET` of a server would answer."""

    def __init__(self, bind: str, is_protected: bool) -> None:
        self.found = {"bind": bind, "protected-mode": "yes" if is_protected else "no"}

    def config_get(self, name: str) -> dict[str, str]:
        return {name: self.found[name]}


LOCAL = Endpoint(kind="redis", host="127.0.0.1", port=6379)
SOCKET = Endpoint(kind="redis+socket", socket_path="/tmp/redis.sock")
FAR = Endpoint(kind="redis", host="192.0.2.7", port=6379)  # an address of no machine


@pytest.mark.parametrize(
    ("endpoint", "settings", "is_open"),
    [
        (LOCAL, Settings("127.0.0.1 -::1", False), False),
        (LOCAL, Settings("127.0.0.1 192.0.2.7", False), True),
        (LOCAL, Settings("* -::*", False), True),
        (LOCAL, Settings("", False), True),
        (LOCAL, Settings("* -::*", True), False),  # it lets in only who comes from this machine
        (SOCKET, Settings("* -::*", False), True),
        (SOCKET, Settings("127.0.0.1", False), False),
        (FAR, None, True),
        (Endpoint(kind="rediss", host="192.0.2.7", port=1, tls=Tls(certfile="me.pem")), None, False),
    ],
)
def test_which_servers_other_machines_reach(endpoint: Endpoint, settings: Any, is_open: bool) -> None:
    assert reach._is_open_to_others(settings, endpoint) is is_open


def test_a_server_without_a_password_is_warned_of_where_others_reach_it(
    open_redis: RedisServer, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = Endpoint(kind="redis", host=HOST, port=open_redis.port)
    locked = Endpoint(kind="redis", host=HOST, port=any_redis.port, password=Secret(any_redis.password or ""))
    assert check_endpoint(endpoint, 60).hint == ""
    monkeypatch.setattr(reach, "is_loopback", lambda host: False)
    assert check_endpoint(locked, 60).hint == ""
    found = check_endpoint(endpoint, 60)
    assert found.ok
    assert "no password" in found.hint
    judged = judge_reach("broker", endpoint, found)
    assert judged.status == "warning"
    assert "no password" in judged.hint


def test_run_workers_and_config_check_tell_of_it(
    open_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from merlin.views.servers import require_reachable

    config = find_config({"MERLIN_BROKER_URL": open_redis.url, "HOME": str(tmp_path)})
    assert config is not None
    assert require_reachable(config) == []
    monkeypatch.setattr(reach, "is_loopback", lambda host: False)
    (warning,) = require_reachable(config)
    assert "no password" in warning
    assert str(open_redis.port) in warning


def test_a_key_that_others_can_read_is_refused_before_a_workspace_is_made(
    any_redis: RedisServer, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_text("00" * 32)
    key.chmod(0o644)
    spec = tmp_path / "spec.yaml"
    spec.write_text(
        "description: {name: s, description: d}\nstudy: [{name: a, description: d, run: {cmd: 'true'}}]\n"
    )
    env = {"MERLIN_BROKER_URL": any_redis.url, "MERLIN_KEY_FILE": str(key), "HOME": str(tmp_path)}
    done = run_merlin("run", spec, cwd=tmp_path, env=env)
    assert done.returncode != 0
    assert f"chmod 600 {key}" in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["key", "spec.yaml"]
    key.unlink()
    done = run_merlin("run", spec, cwd=tmp_path, env=env)
    assert done.returncode != 0
    assert "which does not exist" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["spec.yaml"]
    json.loads(
        run_merlin("config", "check", "--json", cwd=tmp_path, env=env | {"MERLIN_KEY_FILE": ""}).stdout
    )
