"""The scripts inside docker-compose.yml do what they should, run here without a container."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import redis
import yaml
from servers import HOST, die_with_us, free_port, program

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
PASSWORD = "a-password-of-this-test"


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """A folder in the place of a container's root, and stand-ins for the programs of its image."""
    for place in ("run/secrets", "run/merlin", "data", "etc/rabbitmq/conf.d", "bin"):
        (tmp_path / place).mkdir(parents=True)
    for name in ("redis_password", "rabbitmq_password"):
        (tmp_path / "run/secrets" / name).write_text(PASSWORD + "\n")
    stand_in(tmp_path, "chown", "exit 0")
    return tmp_path


def stand_in(container: Path, name: str, text: str) -> None:
    path = container / "bin" / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def start(container: Path, service: str) -> subprocess.Popen[bytes]:
    found = yaml.safe_load(COMPOSE.read_text())["services"][service]
    (script,) = found["command"]
    script = script.replace("$$", "$")
    for place in ("/run/", "/data", "/etc/rabbitmq/"):
        script = script.replace(place, f"{container}{place}")
    path = f"{container / 'bin'}{os.pathsep}{os.environ['PATH']}"
    process = subprocess.Popen([*found["entrypoint"], script], env={"PATH": path}, start_new_session=True)
    die_with_us(process.pid)
    return process


def test_redis_starts_with_its_password_and_its_log(container: Path) -> None:
    program("redis-server")
    port = free_port()
    stand_in(
        container, "docker-entrypoint.sh", f'exec "$@" --port {port} --bind {HOST} --logfile {container}/log'
    )
    process = start(container, "redis")
    try:
        client = redis.Redis(
            host=HOST,
            port=port,
            password=PASSWORD,
            retry=redis.retry.Retry(redis.backoff.ConstantBackoff(0.05), 2400),  # until it has started
        )
        assert client.ping()
        assert client.config_get("appendonly") == {"appendonly": "yes"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert PASSWORD not in Path(f"/proc/{process.pid}/cmdline").read_text()
        assert (container / "run/merlin/redis.conf").stat().st_mode & 0o077 == 0
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(host=HOST, port=port).ping()
        client.close()
    finally:
        process.kill()
        process.wait()


def test_rabbitmq_gets_its_user_from_a_file_that_others_cannot_read(container: Path) -> None:
    stand_in(container, "docker-entrypoint.sh", f'printf "%s " "$@" > {container}/started')
    assert start(container, "rabbitmq").wait(120) == 0
    (config,) = (container / "etc/rabbitmq/conf.d").iterdir()
    assert config.stat().st_mode & 0o077 == 0
    lines = config.read_text().splitlines()
    assert f"default_pass = {PASSWORD}" in lines and "default_user = merlin" in lines
    assert (container / "started").read_text() == "rabbitmq-server "
