from __future__ import annotations

import pytest

from merlin.base.document.scalars import Problem
from merlin.config.model import NO_SECRET, Endpoint, Secret, Tls
from merlin.config.url import parse_url


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("redis://h", Endpoint(kind="redis", host="h", port=6379)),
        (" redis://h/ ", Endpoint(kind="redis", host="h", port=6379)),
        ("REDIS://:pw@h:1/2", Endpoint(kind="redis", host="h", port=1, db=2, password=Secret("pw"))),
        ("redis://joe@h", Endpoint(kind="redis", host="h", port=6379, username="joe")),
        ("redis://:a%2Fb%40@[::1]:7", Endpoint(kind="redis", host="::1", port=7, password=Secret("a/b@"))),
        ("redis://:a@b@h", Endpoint(kind="redis", host="h", port=6379, password=Secret("a@b"))),
        ("rediss://h", Endpoint(kind="rediss", host="h", port=6379, tls=Tls())),
        (
            "rediss://h?ssl_cert_reqs=CERT_NONE&ssl_check_hostname=false",
            Endpoint(kind="rediss", host="h", port=6379, tls=Tls(cert_reqs="none", check_hostname=False)),
        ),
        (
            "amqp://h",
            Endpoint(kind="amqp", host="h", port=5672, username="guest", password=Secret("guest"), vhost="/"),
        ),
        ("amqp://joe@h/", Endpoint(kind="amqp", host="h", port=5672, username="joe", vhost="/")),
        (
            "amqps://joe:pw@h/my%2Fhost",
            Endpoint(
                kind="amqps",
                host="h",
                port=5671,
                username="joe",
                password=Secret("pw"),
                vhost="my/host",
                tls=Tls(),
            ),
        ),
        (
            "amqp://j:p@h//v",
            Endpoint(kind="amqp", host="h", port=5672, username="j", password=Secret("p"), vhost="/v"),
        ),
        ("redis+socket:///run/r.sock", Endpoint(kind="redis+socket", socket_path="/run/r.sock")),
        (
            "redis+socket://:pw@/run/r.sock?virtual_host=4",
            Endpoint(kind="redis+socket", socket_path="/run/r.sock", db=4, password=Secret("pw")),
        ),
    ],
)
def test_urls_are_read(url, endpoint):
    assert parse_url(url, {}) == endpoint


def test_files_of_a_url_are_absolute_and_must_exist(tmp_path):
    (tmp_path / "ca.pem").touch()
    endpoint = parse_url("rediss://h?ssl_ca_certs=~/ca.pem", {"HOME": str(tmp_path)})
    assert endpoint.tls == Tls(ca_certs=str(tmp_path / "ca.pem"))
    with pytest.raises(Problem, match=r"other\.pem"):
        parse_url("rediss://h?ssl_ca_certs=$HOME/other.pem", {"HOME": str(tmp_path)})


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (SECRET, "not a URL"),
        (f"rds://:{SECRET}@h", "rds"),
        (f"redis://:{SECRET}/x@h:1/0", "cannot be read"),
        (f"redis://:{SECRET}#x@h:1/0", "cannot be read"),
        (f"redis://joe:77/{SECRET}@h:1/0", "no host"),
        (f"redis://:{SECRET}@", "no host"),
        (f"redis://:{SECRET}@h:99999", "cannot be read"),
        (f"redis://:{SECRET}@h:port", "cannot be read"),
        (f"redis://:{SECRET}@h/zero", "number of a database"),
        (f"redis://:{SECRET}@h/-1", "number of a database"),
        (f"redis://:{SECRET}@h/0#x", "fragment"),
        (f"redis://:{SECRET}@h?ssl_ca_certs=/x", "encrypted"),
        (f"redis://:{SECRET}@h?a", "cannot be read"),
        (f"rediss://:{SECRET}@h?ssl_ca_crts=/x", "ssl_ca_crts"),
        (f"rediss://:{SECRET}@h?ssl_cert_reqs=never", "never"),
        (f"amqps://:{SECRET}@h?ssl_check_hostname=perhaps", "neither true nor false"),
        (f"redis+socket://:{SECRET}@h/run/r.sock", "absolute"),
        (f"redis+socket://:{SECRET}@/run/r.sock?x=1", "means nothing"),
        (f"sentinel://:{SECRET}@h", "sentinel"),
    ],
)
def test_a_wrong_url_is_explained_without_repeating_its_password(url, message):
    with pytest.raises(Problem, match=message) as caught:
        parse_url(url, {})
    assert SECRET not in f"{caught.value} {caught.value.hint}"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_url_without_a_password_has_none():
    assert parse_url("redis://h", {}).password is not None
    assert not parse_url("redis://h", {}).password
    assert parse_url("redis://h", {}).password == NO_SECRET
