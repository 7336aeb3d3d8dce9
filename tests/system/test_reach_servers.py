"""Do the checks of the configuration tell the truth about real servers, over TLS too?"""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec.structs
import pytest
from commands import run_merlin
from servers import HOST, Authority, RedisServer, SharedRabbit, secure_rabbit, throwaway_ca

from merlin.config.load import load_config
from merlin.config.model import Endpoint, Kind, Secret, Tls
from merlin.config.reach import Reach, check_endpoint
from merlin.config.url import parse_url


def checked(endpoint: Endpoint, *, timeout_s: float = 60.0) -> Reach:
    """The answer, which must come although the server may give none, name the place, and hold no secret."""
    reach = check_endpoint(endpoint, timeout_s)
    assert endpoint.address in reach.detail
    assert not endpoint.password or endpoint.password.reveal() not in f"{reach.detail}{reach.hint}"
    return reach


@pytest.fixture(scope="module")
def tls_redis(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), tls=authority) as server:
        yield server


@pytest.fixture
def tls_rabbit() -> SharedRabbit:
    return secure_rabbit()


def secure(url: str, ca: Path) -> Endpoint:
    return msgspec.structs.replace(parse_url(url, {}), tls=Tls(ca_certs=str(ca)))


def test_redis_that_answers(any_redis):
    reach = checked(parse_url(any_redis.url, {}))
    assert reach.ok
    assert reach.version[0].isdigit()
    assert reach.latency_ms is not None
    assert reach.latency_ms > 0
    assert reach.hint == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"password": Secret("wrong")}, "refuses the password of the default user"),
        ({"password": Secret("wrong"), "username": "joe"}, "refuses the password of user 'joe'"),
        ({"password": Secret()}, "wants a password"),
        ({"db": 9999}, "no database 9999"),
        ({"kind": "rediss", "tls": Tls()}, "does not answer in TLS"),
    ],
)
def test_redis_that_refuses(any_redis, change, words):
    timeout_s = 6.0 if "tls" in change else 60.0  # it waits for more of what it takes for a command
    reach = checked(msgspec.structs.replace(parse_url(any_redis.url, {}), **change), timeout_s=timeout_s)
    assert not reach.ok
    assert words in reach.detail
    assert reach.hint


def test_redis_that_is_paused(own_redis):
    own_redis.pause()
    reach = checked(parse_url(own_redis.url, {}), timeout_s=1.0)
    own_redis.resume()
    assert not reach.ok
    assert "did not answer" in reach.detail


def test_rabbitmq_that_answers(any_rabbit):
    reach = checked(parse_url(any_rabbit.url, {}))
    assert reach.ok
    assert reach.version[0].isdigit()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"password": Secret("wrong")}, "refuses the password of user 'merlin'"),
        ({"vhost": "nowhere"}, "no virtual host 'nowhere'"),
        ({"kind": "amqps", "tls": Tls()}, "does not speak TLS"),
    ],
)
def test_rabbitmq_that_refuses(any_rabbit, change, words):
    reach = checked(msgspec.structs.replace(parse_url(any_rabbit.url, {}), **change))
    assert not reach.ok
    assert words in reach.detail
    assert reach.hint


@pytest.mark.parametrize("product", ["redis", "rabbit"])
def test_tls_is_verified_against_the_authority_that_is_named(product, tmp_path, request):
    server = request.getfixturevalue(f"tls_{product}")
    url = server.url
    assert checked(secure(url, server.tls.ca)).ok
    unnamed = checked(msgspec.structs.replace(parse_url(url, {}), tls=Tls()))
    assert not unnamed.ok
    assert "cannot be trusted" in unnamed.detail
    assert "ca_certs" in unnamed.hint
    assert not checked(secure(url, throwaway_ca(tmp_path / "other").ca)).ok
    assert checked(msgspec.structs.replace(parse_url(url, {}), tls=Tls(cert_reqs="none"))).ok


@pytest.mark.parametrize(("product", "plain"), [("redis", "redis"), ("rabbit", "amqp")])
def test_a_plain_connection_to_a_tls_port_is_explained(product, plain: Kind, request):
    url = request.getfixturevalue(f"tls_{product}").url
    reach = checked(msgspec.structs.replace(parse_url(url, {}), kind=plain, tls=None))
    assert not reach.ok
    assert "TLS" in reach.hint


@pytest.fixture
def impostor(authority: Authority) -> Iterator[int]:
    """Somebody with a certificate of the right authority, but for another name than the one we ask for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.cert, authority.key)
    with socket.create_server(("127.0.0.2", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # whoever does not trust us leaves in its own way
                    context.wrap_socket(connection, server_side=True).close()

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]


@pytest.mark.parametrize("kind", ["rediss", "amqps"])
def test_a_certificate_for_another_name_is_refused(kind: Kind, impostor, authority):
    endpoint = Endpoint(
        kind=kind,
        host="127.0.0.2",
        port=impostor,
        username="joe",
        password=Secret("hunter2"),
        vhost="v",
        tls=Tls(ca_certs=str(authority.ca)),
    )
    reach = checked(endpoint)
    assert "cannot be trusted" in reach.detail
    assert "the name that stands in the certificate" in reach.hint
    careless = msgspec.structs.replace(
        endpoint, tls=msgspec.structs.replace(endpoint.tls, check_hostname=False)
    )
    assert "trusted" not in checked(careless).detail


def test_celery_and_redis_connect_with_what_app_yaml_says(tls_redis, tls_rabbit, tmp_path):
    """The whole way: a file as a user writes it, and the keyword arguments that the clients get."""
    kombu = pytest.importorskip("kombu")
    import redis

    (tmp_path / "pw").write_text(tls_redis.password + "\n")
    (tmp_path / "pw").chmod(0o600)
    path = tmp_path / "app.yaml"
    path.write_text(
        f"""\
broker:
    name: rabbitmq
    username: {tls_rabbit.user}
    password: pw
    server: {HOST}
    port: {tls_rabbit.port}
    vhost: {tls_rabbit.vhost}
    cert_reqs: required
    ca_certs: {tls_rabbit.tls.ca}
results_backend:
    name: rediss
    password: pw
    server: localhost
    port: {tls_redis.port}
    cert_reqs: required
    ssl_ca_certs: {tls_redis.tls.ca}
"""
    )
    config = load_config(path, {"HOME": str(tmp_path)})
    with redis.Redis(**config.backend.redis_options(), socket_timeout=60) as client:
        assert client.ping()
    for endpoint in (config.broker, config.backend):
        with kombu.Connection(endpoint.url, ssl=endpoint.broker_use_ssl, connect_timeout=60) as connection:
            queue = connection.SimpleQueue("reach-test")
            queue.put({"a": 1})
            assert queue.get(timeout=120).payload == {"a": 1}
            queue.close()
            queue.queue.delete()


def merlin(cwd: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}
    return run_merlin(*words, cwd=cwd, env={**inherited, "HOME": str(cwd), **env})


def test_the_command_line_makes_changes_and_checks_a_configuration(any_redis, tmp_path):
    (tmp_path / "pw").write_text(any_redis.password)
    (tmp_path / "pw").chmod(0o600)
    assert merlin(tmp_path, "config", "create", "--broker", "redis").returncode == 0
    unfilled = merlin(tmp_path, "config", "check")
    assert unfilled.returncode == 2
    assert "app.yaml:" in unfilled.stderr
    where = ["-s", HOST, "-p", str(any_redis.port), "--pf", "pw", "--no-tls"]
    for what in ("update-broker", "update-backend"):
        done = merlin(tmp_path, "config", what, "-t", "redis", *where)
        assert done.returncode == 0, done.stderr
    good = merlin(tmp_path, "config", "check", "--json")
    assert good.returncode == 0, good.stdout + good.stderr
    told = json.loads(good.stdout)
    assert [server["reach"]["ok"] for server in told["servers"]] == [True]
    assert any_redis.password not in good.stdout
    shown = merlin(tmp_path, "config", "show")
    assert f"redis://:******@{HOST}:{any_redis.port}/0" in shown.stdout
    assert any_redis.password not in shown.stdout


def test_a_configuration_whose_server_is_gone_ends_with_1_and_a_hint(tmp_path):
    gone = merlin(tmp_path, "config", "check", MERLIN_BROKER_URL="redis://:hunter2@127.0.0.1:1")
    assert gone.returncode == 1
    assert "127.0.0.1:1 refuses connections" in gone.stdout
    assert "hunter2" not in gone.stdout + gone.stderr
