"""app.yaml: upstream's file, with a place for every finding.

Blocks: `broker`, `results_backend` and `celery`. No finding ever repeats a value that could be a secret.
"""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from merlin.base.document.findings import Findings, Source, allowed, did_you_mean
from merlin.base.document.scalars import Problem, typed
from merlin.base.document.tree import Entry, parse, to_data
from merlin.config.block import Block, Surroundings
from merlin.config.celery_settings import SETTINGS, new_name
from merlin.config.model import DEFAULT_PORTS, Config, Endpoint, Kind, Tls
from merlin.config.places import absolute, default_key_path
from merlin.config.url import make_tls, parse_url
from merlin.errors import ConfigError

BLOCKS = ("broker", "results_backend", "celery")
MAX_FILE_BYTES = 1 << 20
SLIP = 0.9  # how like a setting of Celery a name must be to be taken for a slip; newer versions have more settings
# upstream's names; `rabbitmq` has always meant the encrypted protocol
KIND_OF_NAME: Mapping[str, Kind] = {
    "redis": "redis",
    "rediss": "rediss",
    "redis+socket": "redis+socket",
    "rabbitmq": "amqps",
    "amqps": "amqps",
    "amqp": "amqp",
}
OTHER_BACKENDS = ("none", "sqlite", "mysql")  # upstream's results went there; ours are in the ledger
_TLS_KEYS = ("cert_reqs", "ca_certs", "certfile", "keyfile", "check_hostname")
_SERVER_KEYS = (
    "name", "url", "server", "port", "username", "password", "db_num", "vhost", "path",
    *_TLS_KEYS, *(f"ssl_{key}" for key in _TLS_KEYS), "ssl_protocol",
)  # fmt: skip
_BACKEND_KEYS = (*_SERVER_KEYS, "encryption_key", "dbname")
_CELERY_KEYS = ("overrides", "override", "certs", "omit_queue_tag", "queue_tag")
_UPSTREAMS_SETTINGS = ("visibility_timeout",)  # its documents put it here; no message of ours needs one
_SERIALIZERS = ("task_serializer", "result_serializer", "event_serializer")
_CONTENT_TYPES = ("accept_content", "result_accept_content")
_DECIDED_ABOVE = {"broker_url": "broker", "broker_read_url": "broker", "broker_write_url": "broker",
                  "broker_use_ssl": "broker", "result_backend": "results_backend"}  # fmt: skip


def read_app_file(path: Path, env: Mapping[str, str], origin: str) -> Config:
    """The configuration in an app.yaml. Raises ConfigError with every finding."""
    findings = Findings(str(path))
    text, others_can_read = _read(path)
    tree = parse(
        Source(findings.file, text),
        findings,
        what="configuration",
        blocks=", ".join(BLOCKS),
        needs="the block broker; `merlin config create` writes a template",
    )
    config = None
    if tree is not None:
        config = _config(tree, path, env, origin, others_can_read, findings)
    # the offending text may be a password: it goes no further
    diagnostics = [replace(item, text="") for item in findings.sorted()]
    if config is None or findings.failed:
        raise ConfigError(diagnostics)
    return replace(config, warnings=tuple(diagnostics))


def _read(path: Path) -> tuple[str, bool]:
    """The text of the file, and whether other users can read it too."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
            mode = path.stat().st_mode
        text = raw.decode()
    except OSError as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"the configuration {path} is not UTF-8 text") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"the configuration {path} is larger than a megabyte: is it the right file?")
    if mode & 0o002:
        raise ConfigError(
            f"every user can change the configuration {path}, and so choose the servers and the key\n"
            f"  Close it: chmod o-w {path}"
        )
    return text, bool(mode & 0o044)


def _config(
    tree: Entry, path: Path, env: Mapping[str, str], origin: str, others_can_read: bool, findings: Findings
) -> Config | None:
    around = Surroundings(env, path.parent, others_can_read)
    celery = _block("celery", tree, findings, around)
    if certs := celery.text("certs"):
        around = replace(around, certs=absolute(certs, env, path.parent))
    Block("app.yaml", tree, findings, around).check_keys(BLOCKS)
    broker_block = _block("broker", tree, findings, around)
    backend_block = _block("results_backend", tree, findings, around)
    overrides = _celery(celery)
    if not broker_block.entry.mapping:
        findings.error(
            tree.get("broker").key_place if "broker" in tree.mapping else (1, 1),
            "the block broker is missing or empty",
            hint="merlin config update-broker --help shows how to fill it",
            code="missing",
        )
        return None
    broker_block.check_keys(_SERVER_KEYS)
    backend_block.check_keys(_BACKEND_KEYS)
    broker = _server(broker_block, env)
    backend = _backend(backend_block, broker, env)
    key_path = _key_path(backend_block, path, env)
    if broker is None or backend is None:
        return None
    return Config(
        broker=broker,
        backend=backend,
        key_path=key_path,
        origin=origin,
        path=path,
        celery=overrides,
        is_key_given=bool(env.get("MERLIN_KEY_FILE")),
    )


def _block(name: str, tree: Entry, findings: Findings, around: Surroundings) -> Block:
    entry = tree.get(name)
    if not entry.is_null and not isinstance(entry.content, dict):
        findings.error(entry.place, f"{name} must be a mapping of keys and values", code="type")
        entry = replace(entry, content=None)
    return Block(name, entry, findings, around)


def _key_path(backend: Block, path: Path, env: Mapping[str, str]) -> Path:
    given = backend.text("encryption_key")
    if given and not env.get("MERLIN_KEY_FILE"):
        return absolute(given, env, path.parent)
    return default_key_path(env)


def _backend(block: Block, broker: Endpoint | None, env: Mapping[str, str]) -> Endpoint | None:
    name = block.text("name").lower()
    if name in OTHER_BACKENDS or not (name or block.has("url")):
        if broker is None:
            return None
        if broker.is_redis:
            if name:
                block.warning("name", f"{name} is not used: progress is kept in the broker's Redis")
            return broker
        block.error(
            "name",
            "a RabbitMQ broker needs a Redis beside it, which holds the progress of studies",
            "name: rediss (or redis) with server, port and password; `merlin server start` runs one",
            "no-redis",
        )
        return None
    backend = _server(block, env)
    if backend is not None and not backend.is_redis:
        block.error(
            "name", "the progress of studies is kept in Redis, not in RabbitMQ", "name: redis or rediss"
        )
        return None
    return backend


def _server(block: Block, env: Mapping[str, str]) -> Endpoint | None:
    if block.has("url"):
        try:
            return parse_url(block.text("url"), env)
        except Problem as problem:
            block.error("url", str(problem), problem.hint, "url")
            return None
    name = block.text("name").lower()
    kind = KIND_OF_NAME.get(name)
    if kind is None:
        _unknown_name(block, name)
        return None
    if kind.startswith("redis") and block.has("vhost"):
        block.warning(
            "vhost", "means nothing to Redis", "db_num: 0 names its database; remove vhost", "unknown-key"
        )
    if kind == "redis+socket":
        return _socket(block)
    server = block.text("server")
    if not block.has("server"):
        block.error("server", "the host name of the server is missing", code="missing")
    elif any(character in server for character in "/@?# "):
        block.error(
            "server", "must be a host name or an address alone", "a whole URL is given as url: instead"
        )
    common: dict[str, Any] = {
        "kind": kind,
        "host": server.strip("[]"),
        "port": block.number("port", DEFAULT_PORTS[kind], 1, 65535),
        "password": block.password(),
        "tls": _tls(block, kind),
    }
    if kind.startswith("redis"):
        return Endpoint(**common, username=block.text("username"), db=block.number("db_num", 0, 0, 1_000_000))
    if not block.has("password"):
        block.error("password", "RabbitMQ wants one", "name the file that holds it", "missing")
    me = getpass.getuser() if not (block.has("username") and block.has("vhost")) else ""
    return Endpoint(**common, username=block.text("username") or me, vhost=block.text("vhost") or me)


def _unknown_name(block: Block, name: str) -> None:
    if not name:
        block.error(
            "name", "which kind of server it is, is missing", f"known: {', '.join(KIND_OF_NAME)}", "missing"
        )
    elif any(character in name for character in ":/@"):  # a URL, perhaps with a password in it
        block.error(
            "name", "must be one word", f"known: {', '.join(KIND_OF_NAME)}; a whole URL is given as url:"
        )
    else:
        block.error("name", f"{name!r} is not a known kind of server", allowed(name, KIND_OF_NAME, "known"))


def _socket(block: Block) -> Endpoint:
    path = block.text("path")
    if not path.startswith("/"):
        block.error(
            "path",
            "the absolute path of the Redis socket is missing",
            "path: /run/redis/redis.sock",
            "missing",
        )
    return Endpoint(
        kind="redis+socket",
        socket_path=path,
        username=block.text("username"),
        password=block.password(),
        db=block.number("db_num", 0, 0, 1_000_000),
    )


def _tls(block: Block, kind: Kind) -> Tls | None:
    if kind not in ("rediss", "amqps"):
        _refuse_half_encrypted(block, kind)
        return None
    if block.has("ssl_protocol"):
        block.warning("ssl_protocol", "is not used: the newest protocol that both sides know is chosen")
    try:
        tls = make_tls(
            cert_reqs=block.text("cert_reqs", "ssl_cert_reqs"),
            check_hostname=block.text("check_hostname", "ssl_check_hostname"),
            files={key: block.file(key, f"ssl_{key}") for key in ("ca_certs", "certfile", "keyfile")},
        )
    except Problem as problem:
        block.error("cert_reqs", str(problem), problem.hint)
        return None
    if tls.cert_reqs == "none":
        block.warning(
            "cert_reqs",
            "none: anybody on the way can pretend to be the server and read the password",
            "cert_reqs: required, with ca_certs: FILE if your site has its own authority",
            "unverified",
        )
    return tls


def _refuse_half_encrypted(block: Block, kind: Kind) -> None:
    """Who names certificates means to encrypt; a plain connection would betray that."""
    encrypted = "rediss" if kind == "redis" else "rabbitmq"
    asks = [key for key in _TLS_KEYS for name in (key, f"ssl_{key}") if block.has(name)]
    if any(key in asks for key in ("ca_certs", "certfile", "keyfile")) or (
        "cert_reqs" in asks and block.text("cert_reqs", "ssl_cert_reqs").lower() == "required"
    ):
        block.error(
            "name",
            f"{kind} is not encrypted, but {asks[0]} asks for it",
            f"write name: {encrypted}",
            "no-tls",
        )


def _celery(block: Block) -> dict[str, Any]:
    block.check_keys(_CELERY_KEYS)
    for key in ("omit_queue_tag", "queue_tag"):
        if block.has(key):
            block.warning(key, "is not used: queues are always called [merlin]_NAME")
    # upstream's template says one, its code the other
    key = "overrides" if block.has("overrides") else "override"
    if not block.has(key):
        return {}
    entry = block.entry.get(key)
    if not isinstance(entry.content, dict):
        block.error(key, "must be a mapping of Celery settings and their values", code="type")
        return {}
    inner = Block(f"celery.{key}", entry, block.findings, block.around)
    values = typed(to_data(entry))
    for name in values:
        _check_setting(inner, name, values[name])
    return cast(dict[str, Any], values)


def _check_setting(block: Block, name: str, value: object) -> None:
    """Nothing on the wire is ever unpickled, whatever the settings say, and servers are named in one place."""
    _check_setting_name(block, name)
    given = value if isinstance(value, list) else [value]
    setting = name.lower().removeprefix("celery_")  # Celery takes its old names, too
    if setting in _SERIALIZERS + _CONTENT_TYPES and any(v not in ("json", "application/json") for v in given):
        block.error(name, "messages are JSON and nothing else", "remove this line", "not-json")
    if setting in _DECIDED_ABOVE:
        block.error(
            name,
            f"the server is named in the block {_DECIDED_ABOVE[setting]}",
            "remove this line",
            "two-places",
        )


def _check_setting_name(block: Block, name: str) -> None:
    """Celery passes over names that it does not know, and stops at old names beside new ones."""
    if name in SETTINGS or name in _UPSTREAMS_SETTINGS:
        return
    place = block.entry.mapping[name].key_place
    message = f"{block.name}: {name!r} is not a setting of Celery"
    if name.isupper():
        new = new_name(name)
        hint = f"did you mean {new!r}?" if new else "write the name that it has in Celery 4 and later"
        block.findings.error(place, f"{message}: it is a name of Celery 3", hint=hint, code="unknown-key")
        return
    slip = did_you_mean(name, SETTINGS, cutoff=SLIP)
    report = block.findings.error if slip else block.findings.warning
    hint = slip or "https://docs.celeryq.dev/en/stable/userguide/configuration.html"
    report(place, message, hint=hint, code="unknown-key")
