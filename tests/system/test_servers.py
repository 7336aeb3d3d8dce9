"""The servers that other tests rely on do what those tests believe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis
from servers import (
    HOST,
    LOOPBACK,
    PASSWORD,
    RedisServer,
    listening,
    secure_rabbit,
    throwaway_ca,
)

TESTS = Path(__file__).resolve().parents[1] / "support"


def test_redis_wants_its_password_and_listens_on_loopback_alone(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        assert client.set("a", "1")
    wrong = own_redis.url.replace(PASSWORD, "wrong")
    with pytest.raises(redis.AuthenticationError), redis.Redis.from_url(wrong) as client:
        client.get("a")
    assert listening(own_redis.pid) == LOOPBACK
    assert PASSWORD not in Path(f"/proc/{own_redis.pid}/cmdline").read_text()


@pytest.mark.parametrize("appendonly", [True, False])
def test_redis_keeps_its_keys_over_a_crash_if_it_has_a_log(tmp_path: Path, appendonly: bool) -> None:
    with RedisServer(tmp_path, appendonly=appendonly, appendfsync="always") as server:
        with server.client() as client:
            client.set("a", "1")
        server.kill9()
        server.start_again()
        with server.client() as client:
            assert client.get("a") == ("1" if appendonly else None)


def test_a_shared_redis_is_empty_for_each_test(any_redis: RedisServer) -> None:
    with any_redis.client() as client:
        assert client.dbsize() == 0
        client.set("a", "1")


test_a_shared_redis_is_empty_for_the_next_test = test_a_shared_redis_is_empty_for_each_test


def test_a_paused_redis_is_silent_until_it_goes_on(own_redis: RedisServer) -> None:
    with own_redis.client() as client:
        client.set("a", "1")
    own_redis.pause()
    with pytest.raises(redis.TimeoutError), own_redis.client(socket_timeout=0.2) as client:
        client.get("a")
    own_redis.resume()
    with own_redis.client() as client:
        assert client.get("a") == "1"


def test_a_full_redis_refuses_writes(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory="3mb") as server, server.client() as client:
        with pytest.raises(redis.OutOfMemoryError):
            for i in range(100):
                client.set(f"key{i}", "x" * 100_000)
        assert client.get("key0")


def test_redis_over_tls_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    ours, other = throwaway_ca(tmp_path / "ours"), throwaway_ca(tmp_path / "other")
    with RedisServer(tmp_path, tls=ours) as server:
        with server.client() as client:
            assert client.ping()
        with pytest.raises(redis.ConnectionError), server.client(ssl_ca_certs=str(other.ca)) as client:
            client.ping()


def test_rabbitmq_over_tls_is_trusted_by_its_authority_alone(tmp_path: Path) -> None:
    from kombu import Connection

    server, other = secure_rabbit(), throwaway_ca(tmp_path / "other")
    with server.connection() as connection, connection.SimpleQueue("over TLS") as queue:
        queue.put("hello")
        message = queue.get(timeout=120)
        message.ack()
        assert message.payload == "hello"
    with (
        pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"),
        Connection(server.url, ssl={"ca_certs": str(other.ca), "server_hostname": HOST}) as stranger,
    ):
        stranger.connect()


def test_a_server_dies_with_a_test_run_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from servers import RedisServer\n"
        "server = RedisServer(pathlib.Path(sys.argv[1])); print(server.pid, flush=True); time.sleep(600)"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=TESTS, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    pid = int(run.stdout.readline())
    gone = os.pidfd_open(pid)
    run.send_signal(signal.SIGKILL)
    run.communicate()
    import select

    assert select.select([gone], [], [], 120)[0], "the server outlived its test run"
    os.close(gone)
