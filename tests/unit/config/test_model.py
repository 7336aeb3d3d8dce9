from __future__ import annotations

import copy
import json
import pickle
import ssl
import traceback
from pathlib import Path

import msgspec.structs
import pytest

from merlin.cli.output import to_json
from merlin.config.keys import make_key
from merlin.config.model import Config, Endpoint, Secret, Tls
from merlin.config.url import parse_url

PASSWORD = "p@ss/w:rd #1%"
REDIS = Endpoint(kind="redis", host="h", port=6379, username="joe", password=Secret(PASSWORD), db=3)
RABBIT = Endpoint(
    kind="amqps", host="h", port=5671, username="joe", password=Secret(PASSWORD), vhost="/v", tls=Tls()
)
SOCKET = Endpoint(kind="redis+socket", socket_path="/run/r.sock", password=Secret(PASSWORD), db=2)


def config(tmp_path: Path, broker: Endpoint = REDIS) -> Config:
    return Config(broker=broker, backend=REDIS, key_path=tmp_path / "merlin.key", origin="test")


@pytest.mark.parametrize("endpoint", [REDIS, RABBIT, SOCKET], ids=lambda e: e.kind)
def test_no_way_of_showing_an_endpoint_shows_its_password(endpoint, tmp_path):
    whole = config(tmp_path, endpoint)
    whole.key, whole.namespace  # noqa: B018  read once, so that they are kept somewhere
    shown = [repr(endpoint), str(endpoint), f"{endpoint}", repr(whole), to_json(endpoint), to_json(whole)]
    shown += [
        str(msgspec.structs.asdict(endpoint)),
        str(msgspec.structs.astuple(whole)),
        endpoint.safe_url,
        endpoint.address,
    ]
    if endpoint.is_redis:
        shown.append(repr(endpoint.redis_options()))
    for text in shown:
        assert PASSWORD not in text
        assert PASSWORD[:5] not in text
        assert whole.key.hex() not in text
        assert repr(whole.key) not in text


def test_a_traceback_with_all_variables_does_not_show_the_password():
    try:
        secret = REDIS.password
        raise ValueError(f"{secret} {secret!r} %s" % secret)
    except ValueError as error:
        told = "".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())
    assert "secret" in told
    assert PASSWORD not in told.replace(f"PASSWORD = {PASSWORD!r}", "")


def test_a_secret_is_not_pickled_and_survives_a_copy():
    with pytest.raises(TypeError):
        pickle.dumps(REDIS)
    with pytest.raises(TypeError):
        json.dumps(REDIS.password)
    assert copy.deepcopy(REDIS) == REDIS
    assert copy.copy(REDIS.password).reveal() == PASSWORD


@pytest.mark.parametrize("endpoint", [REDIS, RABBIT, SOCKET], ids=lambda e: e.kind)
def test_a_url_names_the_same_server_whatever_the_password_holds(endpoint):
    assert parse_url(endpoint.url, {}) == endpoint


@pytest.mark.parametrize("endpoint", [REDIS, RABBIT, SOCKET], ids=lambda e: e.kind)
def test_kombu_reads_from_the_url_what_we_mean(endpoint):
    kombu = pytest.importorskip("kombu")
    info = kombu.Connection(endpoint.url).info()
    assert info["password"] == PASSWORD or endpoint.kind == "redis+socket"
    if endpoint.kind != "redis+socket":
        assert (info["hostname"], info["port"], info["userid"]) == (
            endpoint.host,
            endpoint.port,
            endpoint.username,
        )
        assert info["virtual_host"] == (str(endpoint.db) if endpoint.is_redis else endpoint.vhost)


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        (Tls(), {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}),
        (Tls(cert_reqs="none"), {"ssl_cert_reqs": ssl.CERT_NONE, "ssl_check_hostname": False}),
        (
            Tls(ca_certs="/ca", certfile="/c", keyfile="/k", check_hostname=False),
            {
                "ssl_cert_reqs": ssl.CERT_REQUIRED,
                "ssl_check_hostname": False,
                "ssl_ca_certs": "/ca",
                "ssl_certfile": "/c",
                "ssl_keyfile": "/k",
            },
        ),
    ],
)
def test_tls_in_the_words_of_redis(tls, expected):
    endpoint = msgspec.structs.replace(REDIS, kind="rediss", tls=tls)
    assert endpoint.broker_use_ssl == expected
    assert endpoint.redis_options().items() >= {"ssl": True, **expected}.items()


def test_tls_in_the_words_of_amqp_expects_the_name_of_the_server():
    tls = Tls(ca_certs="/ca")
    assert msgspec.structs.replace(RABBIT, tls=tls).broker_use_ssl == {
        "cert_reqs": ssl.CERT_REQUIRED,
        "ca_certs": "/ca",
        "server_hostname": "h",
    }
    assert msgspec.structs.replace(RABBIT, tls=Tls(cert_reqs="none")).broker_use_ssl == {
        "cert_reqs": ssl.CERT_NONE
    }


def test_queues_of_two_users_have_different_names_and_look_alike(tmp_path):
    (tmp_path / "other").mkdir()
    mine, theirs = config(tmp_path), config(tmp_path / "other")
    assert mine.queue_name("sim") != theirs.queue_name("sim")
    assert mine.display_queue(mine.queue_name("sim")) == "[merlin]_sim"
    assert mine.display_queue(theirs.queue_name("sim")) == theirs.queue_name("sim")
    assert mine.display_queue("celery") == "celery"
    assert mine.namespace in mine.queue_name("sim")
    assert len(mine.namespace) == 8


def test_the_namespace_follows_from_the_key_alone(tmp_path):
    key = make_key(tmp_path / "merlin.key")
    assert config(tmp_path).key == key
    assert config(tmp_path).namespace == config(tmp_path, RABBIT).namespace
    assert config(tmp_path).namespace not in key.hex()


def test_children_are_told_paths_and_no_secret(tmp_path):
    told = msgspec.structs.replace(config(tmp_path), path=Path("/etc/app.yaml")).child_environment()
    assert told == {"MERLIN_CONFIG": "/etc/app.yaml", "MERLIN_KEY_FILE": str(tmp_path / "merlin.key")}
