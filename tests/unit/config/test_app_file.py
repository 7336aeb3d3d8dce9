from __future__ import annotations

import getpass
import re
from pathlib import Path

import pytest

from merlin.config.celery_settings import SETTINGS
from merlin.config.load import load_config
from merlin.config.model import Config, Secret, Tls
from merlin.errors import ConfigError, Diagnostic

# as upstream's template has it, filled in
UPSTREAM = """\
broker:
    name: rabbitmq
    username: joe
    password: ~/.merlin/rabbit.pass
    server: rabbit.example.org
    port: 5671
    vhost: /joe
    cert_reqs: none

results_backend:
    name: rediss
    username: ''
    password: redis.pass
    server: redis.example.org
    encryption_key: ~/.merlin/encrypt_data_key
    port: 6380
    db_num: 0
    cert_reqs: none

celery:
    overrides:
        broker_transport_options: {visibility_timeout: 7200}
        worker_prefetch_multiplier: 1
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home" / ".merlin"
    folder.mkdir(parents=True)
    for name in ("rabbit.pass", "redis.pass"):
        (folder / name).write_text(f"secret of {name}\nand no more\n")
        (folder / name).chmod(0o600)
    return folder.parent


def write(home: Path, text: str, mode: int = 0o600) -> Path:
    path = home / ".merlin" / "app.yaml"
    path.write_text(text)
    path.chmod(mode)
    return path


def load(home: Path, text: str, mode: int = 0o600, **env: str) -> Config:
    return load_config(write(home, text, mode), {"HOME": str(home), **env})


def problems(home: Path, text: str) -> list[Diagnostic]:
    with pytest.raises(ConfigError) as caught:
        load(home, text)
    return [item for item in caught.value.diagnostics if item.severity == "error"]


def test_upstreams_file_is_understood(home):
    config = load(home, UPSTREAM)
    broker, backend = config.broker, config.backend
    assert (broker.kind, broker.host, broker.port) == ("amqps", "rabbit.example.org", 5671)
    assert (broker.username, broker.vhost) == ("joe", "/joe")
    assert broker.password == Secret("secret of rabbit.pass")
    assert (backend.kind, backend.host, backend.port) == ("rediss", "redis.example.org", 6380)
    assert backend.password == Secret("secret of redis.pass")
    assert broker.tls == backend.tls == Tls(cert_reqs="none")
    assert config.key_path == home / ".merlin/encrypt_data_key"
    assert config.celery == {
        "broker_transport_options": {"visibility_timeout": 7200},
        "worker_prefetch_multiplier": 1,
    }
    assert {w.code for w in config.warnings} == {"unverified"}


def test_the_visibility_timeout_that_upstreams_documents_ask_for_is_no_unknown_setting(home):
    for key in ("override", "overrides"):
        config = load(
            home, f"broker: {{name: redis, server: h}}\ncelery: {{{key}: {{visibility_timeout: 86400}}}}"
        )
        assert config.warnings == ()


def test_a_redis_broker_holds_the_progress_too(home):
    config = load(home, "broker: {name: redis, server: h}")
    assert config.backend is config.broker
    assert config.broker.port == 6379
    assert config.broker.tls is None
    assert config.key_path == home / ".merlin/merlin.key"
    assert config.warnings == ()


def test_a_backend_that_upstream_allows_is_replaced_by_the_redis_broker(home):
    config = load(home, "broker: {name: redis, server: h}\nresults_backend: {name: sqlite}")
    assert config.backend is config.broker
    assert "sqlite is not used" in config.warnings[0].message


@pytest.mark.parametrize(
    "backend", ["", "results_backend: {name: none}", "results_backend:", "results_backend: {}"]
)
def test_rabbitmq_without_redis_is_an_error_that_says_so(home, backend):
    found = problems(home, f"broker: {{name: amqp, server: h, password: x}}\n{backend}")
    assert [(d.code, "needs a Redis" in d.message) for d in found] == [("no-redis", True)]


def test_rabbitmq_cannot_hold_progress(home):
    found = problems(
        home, "broker: {name: redis, server: h}\nresults_backend: {name: amqp, server: h, password: x}"
    )
    assert "not in RabbitMQ" in found[0].message


def test_user_and_virtual_host_of_rabbitmq_are_the_login_name_by_default(home):
    me = getpass.getuser()
    config = load(
        home, "broker: {name: amqp, server: h, password: x}\nresults_backend: {name: redis, server: r}"
    )
    assert (config.broker.username, config.broker.vhost, config.broker.port) == (me, me, 5672)


def test_urls_and_sockets(home):
    config = load(
        home,
        "broker: {url: 'redis://:pw@h:7/1'}\n"
        "results_backend: {name: redis+socket, path: /run/r.sock, db_num: 3}\n",
    )
    assert config.broker.safe_url == "redis://:******@h:7/1"
    assert config.backend.url == "redis+socket:///run/r.sock?virtual_host=3"


def test_every_finding_comes_at_once_with_its_place(home):
    found = problems(
        home,
        """\
broker:
    name: rediss
    pasword: x
    port: <server port>
    cert_reqs: sometimes
results_backend:
    name: postgres
    server: h
celery:
    overrides: [1]
brokr: {}
""",
    )
    assert [(d.line, d.col, d.code) for d in found] == [
        (1, 1, "missing"),
        (3, 5, "unknown-key"),
        (4, 11, "value"),
        (5, 16, "value"),
        (7, 11, "value"),
        (10, 16, "type"),
        (11, 1, "unknown-key"),
    ]
    assert "did you mean 'password'" in found[1].hint
    assert "did you mean 'broker'" in found[-1].hint


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("- a", "mapping of blocks"),
        ("broker:", "missing or empty"),
        ("celery: {}", "missing or empty"),
        ("broker: redis", "must be a mapping"),
        ("broker: {server: h}", "which kind of server"),
        ("broker: {name: reddis, server: h}", "not a known kind"),
        ("broker: {name: redis}", "host name"),
        ("broker: {name: redis, server: 'redis://h'}", "host name or an address"),
        ("broker: {name: redis, server: [a, b]}", "one value"),
        ("broker: {name: redis, server: h, port: 0}", "at least 1"),
        ("broker: {name: redis, server: h, port: 65536}", "at most 65535"),
        ("broker: {name: redis, server: h, port: 6379.5}", "not a whole number"),
        ("broker: {name: redis, server: h, db_num: -1}", "at least 0"),
        ("broker: {name: redis, server: h, server: i}", "given twice"),
        ("broker: {name: redis+socket}", "absolute path"),
        ("broker: {name: redis, server: h, password: /no/such/file}", "no such password file"),
        ("broker: {name: redis, server: h, password: ~/no-such-file}", "no such password file"),
        ("broker: {name: redis, server: h, password: no-such/file}", "no such password file"),
        ("broker: {name: redis, server: h, password: $SECRETS}", "no such password file"),
        ("broker: {name: redis, server: h, password: redis.passwd}", "no such password file"),
        ("broker: {name: rediss, server: h, ca_certs: no.pem}", "does not exist"),
        ("broker: {name: rediss, server: h, ssl_ca_certs: no.pem}", "does not exist"),
        ("broker: {name: redis, server: h, cert_reqs: required}", "not encrypted"),
        ("broker: {name: redis, server: h, ca_certs: ca.pem}", "not encrypted"),
        ("broker: {name: amqp, server: h}\nresults_backend: {name: redis, server: h}", "RabbitMQ wants one"),
        ("broker: {url: 'redis://h:x'}", "cannot be read"),
        ("broker: {name: redis, server: h}\ncelery: {overrides: {task_serializer: pickle}}", "JSON"),
        ("broker: {name: redis, server: h}\ncelery: {override: {accept_content: [json, pickle]}}", "JSON"),
        ("broker: {name: redis, server: h}\ncelery: {overrides: {CELERY_ACCEPT_CONTENT: [yaml]}}", "JSON"),
        ("broker: {name: redis, server: h}\ncelery: {overrides: {broker_url: 'redis://x'}}", "block broker"),
    ],
)
def test_what_is_wrong_is_said(home, text, message):
    found = problems(home, text)
    assert any(message in f"{d.message}: {d.hint}" for d in found), found
    assert all(d.line >= 1 for d in found)


@pytest.mark.parametrize(
    "text", ["*hunter2", "[hunter2", "@hunter2: x", '"hunter2', "%hunter2", "hunter2: x: y"]
)
def test_yaml_that_a_password_breaks_does_not_show_the_password(home, text):
    with pytest.raises(ConfigError) as caught:
        load(home, f"broker:\n    name: redis\n    server: h\n    password: {text}\n")
    error = caught.value
    assert "hunter2" not in f"{error} {error!r} {error.args} {error.diagnostics}"
    assert error.diagnostics[0].line >= 4


@pytest.mark.parametrize("key", ["url", "server", "name"])
def test_a_password_in_the_wrong_place_is_not_shown(home, key):
    values = {"name": "redis", "server": "h", key: "xyz://:hunter2@h:1"}
    text = "broker: {" + ", ".join(f"{k}: '{v}'" for k, v in values.items()) + "}"
    assert "hunter2" not in str(problems(home, text))


def test_a_password_may_stand_in_the_file_if_nobody_else_can_read_it(home):
    text = "broker: {name: redis, server: h, password: 'hunter2: yes'}"
    config = load(home, text)
    assert config.broker.password == Secret("hunter2: yes")
    assert config.warnings == ()
    (warning,) = load(home, text, 0o644).warnings
    assert warning.code == "open-secret"
    assert "hunter2" not in repr(warning)


@pytest.mark.parametrize("password", ["12345", "007", "true", "1e3", "null5", "x" * 3000])
def test_a_password_is_text_whatever_yaml_thinks(home, password):
    config = load(home, f"broker: {{name: redis, server: h, password: {password}}}")
    assert config.broker.password.reveal() == password


@pytest.mark.parametrize("secret", ["~hunter2", "hun/ter2", "hunter2.pw"])
def test_a_password_that_looks_like_a_file_is_refused_and_not_shown(home, secret):
    (found,) = problems(home, f"broker: {{name: redis, server: h, password: {secret}}}")
    assert (found.code, found.line) == ("missing-file", 1)
    assert secret not in str(found)


@pytest.mark.parametrize("block", ["name: redis, server: h", "name: redis+socket, path: /run/r.sock"])
def test_a_vhost_of_redis_is_told(home, block):
    config = load(home, f"broker: {{{block}, db_num: 2, vhost: 5}}")
    (warning,) = config.warnings
    assert "vhost: means nothing to Redis" in warning.message
    assert config.broker.db == 2


def test_settings_that_celery_does_not_know_are_told_with_their_place(home):
    text = "broker: {name: redis, server: h}\ncelery:\n  overrides:\n    worker_prefetch_multiplier: 1\n"
    (slip,) = problems(home, f"{text}    worker_prefetch_multiplyer: 4\n")
    assert (slip.line, slip.col, slip.code) == (5, 5, "unknown-key")
    assert slip.hint == "did you mean 'worker_prefetch_multiplier'?"
    config = load(home, f"{text}    prefetch: 4\n    of_a_newer_celery: 1\n")
    assert [(w.line, "not a setting of Celery" in w.message) for w in config.warnings] == [
        (5, True),
        (6, True),
    ]
    assert not any("did you mean" in w.hint for w in config.warnings)
    (old,) = problems(home, f"{text}    CELERYD_MAX_TASKS_PER_CHILD: 4\n")
    assert old.hint == "did you mean 'worker_max_tasks_per_child'?"


def test_the_settings_of_the_installed_celery_are_known():
    from celery.app.defaults import SETTING_KEYS

    assert set(SETTING_KEYS) <= SETTINGS


def test_a_password_file_beside_app_yaml_or_in_the_certs_directory_is_found(home, tmp_path):
    certs = tmp_path / "certs"
    certs.mkdir()
    (certs / "far.pass").write_text("far\n")
    (certs / "far.pass").chmod(0o600)
    config = load(home, f"broker: {{name: redis, server: h, password: far.pass}}\ncelery: {{certs: {certs}}}")
    assert config.broker.password == Secret("far")


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe"])
def test_an_unusable_password_file_is_named(home, content):
    (home / ".merlin" / "redis.pass").write_bytes(content)
    (found,) = problems(home, "broker: {name: redis, server: h, password: redis.pass}")
    assert str(home / ".merlin" / "redis.pass") in found.message


def test_a_password_file_that_others_can_read_is_a_warning(home):
    (home / ".merlin" / "redis.pass").chmod(0o640)
    (warning,) = load(home, "broker: {name: redis, server: h, password: redis.pass}").warnings
    assert "chmod 600" in warning.hint


def test_certificates_are_found_relative_to_the_file_and_in_the_certs_directory(home, tmp_path):
    (home / ".merlin" / "ca.pem").touch()
    (tmp_path / "client.pem").touch()
    (tmp_path / "client.key").touch()
    config = load(
        home,
        "broker: {name: rediss, server: h, ssl_ca_certs: ca.pem, certfile: client.pem, keyfile: client.key}\n"
        f"celery: {{certs: {tmp_path}}}",
    )
    assert config.broker.tls == Tls(
        ca_certs=str(home / ".merlin/ca.pem"),
        certfile=str(tmp_path / "client.pem"),
        keyfile=str(tmp_path / "client.key"),
    )


def test_encryption_verifies_unless_told_otherwise(home):
    assert load(home, "broker: {name: rediss, server: h}").broker.tls == Tls(cert_reqs="required")
    (warning,) = load(home, "broker: {name: rediss, server: h, cert_reqs: none}").warnings
    assert warning.code == "unverified"


def test_a_file_that_everybody_may_change_is_refused(home):
    with pytest.raises(ConfigError, match="chmod o-w"):
        load(home, UPSTREAM, 0o602)


def test_the_key_of_the_environment_comes_first(home):
    assert load(home, UPSTREAM, MERLIN_KEY_FILE="/keys/mine").key_path == Path("/keys/mine")


def test_a_large_or_binary_file_is_refused(home):
    path = write(home, "x")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        load_config(path)
    path.write_bytes(b"#" * 2_000_000)
    with pytest.raises(ConfigError, match="megabyte"):
        load_config(path)


def test_the_words_of_an_error_name_file_line_and_column(home):
    with pytest.raises(ConfigError) as caught:
        load(home, "broker:\n  name: redis\n  server: h\n  prot: 1\n")
    assert re.search(r"app\.yaml:4:3: error: .*\n +did you mean 'port'", str(caught.value))
    assert caught.value.exit_code == 2


def test_a_misspelled_key_without_a_value_is_an_error_too(home):
    text = "broker:\n    name: redis\n    server: h\n    ca_cert:\nresults_backnd:\n"
    found = [(item.line, item.code, item.hint) for item in problems(home, text)]
    assert [(line, code) for line, code, _ in found] == [(4, "unknown-key"), (5, "unknown-key")]
    assert "ca_certs" in found[0][2] and "results_backend" in found[1][2]
