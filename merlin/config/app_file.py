"""app.yaml: upstream's file, with a place for every finding.

Blocks: `broker`, `results_backend` and `celery`. No finding ever repeats a value that could be a secret.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from merlin.base.document.findings import NOWHERE, Findings, Place, SourceText, allowed, did_you_mean
from merlin.base.document.scalars import Problem, typed
from merlin.base.document.tree import MISSING, Entry, parse, to_data
from merlin.base.document.validation import validate_as
from merlin.base.processes import user_name
from merlin.config.celery_settings import SETTINGS, new_name
from merlin.config.model import DEFAULT_PORTS, KIND_OF_NAME, Config, Endpoint, Kind, Tls
from merlin.config.places import absolute, default_key_path
from merlin.config.server_block import (
    BlockContext,
    NetworkBlock,
    RabbitBlock,
    RedisBlock,
    ServerBlock,
    SocketBlock,
    word,
)
from merlin.config.url import parse_url
from merlin.errors import ConfigError

BLOCKS = ("broker", "results_backend", "celery")
MAX_FILE_BYTES = 1 << 20
SLIP = 0.9  # similarity to a setting of Celery from which a name counts as mistyped; newer versions have more settings
BLOCK_OF_KIND: Mapping[Kind, type[ServerBlock]] = {
    "redis": RedisBlock,
    "rediss": RedisBlock,
    "redis+socket": SocketBlock,
    "amqp": RabbitBlock,
    "amqps": RabbitBlock,
}
OTHER_BACKENDS = ("none", "sqlite", "mysql")  # upstream's results went there; ours are in the ledger
_TLS_KEYS = Tls.__struct_fields__
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
        SourceText(findings.file, text),
        findings,
        what="configuration",
        blocks=", ".join(BLOCKS),
        needs="the block broker; `merlin config create` writes a template",
    )
    config = None
    if tree is not None:
        config = _Reader(tree, findings, BlockContext(env, path, others_can_read)).config(origin)
    # the offending text may be a password: it goes no further
    diagnostics = [item.but(text="") for item in findings.sorted()]
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


class _Reader:
    """Reads one file, block by block."""

    def __init__(self, tree: Entry, findings: Findings, context: BlockContext) -> None:
        self._findings, self._env = findings, context.env
        for name in BLOCKS:
            if not tree.get(name).is_null and not isinstance(tree.get(name).content, dict):
                message = f"{name} must be a mapping of keys and values"
                findings.error(tree.get(name).place, message, code="type")
        self._written = tree
        # a key without a value is not given
        blocks = {
            name: replace(
                block, content={k: v for k, v in block.mapping.items() if v.content not in (None, "")}
            )
            for name, block in tree.mapping.items()
        }
        self._tree = replace(tree, content=dict(blocks))
        certs = self._text("celery", "certs")
        self._context = replace(context, certs=self._absolute(certs, context.path) if certs else None)

    def config(self, origin: str) -> Config | None:
        """What the file says; None (with findings) if that is not enough."""
        self._check_keys((), BLOCKS)
        overrides = self._celery()
        if not self._tree.get("broker").mapping:
            message, hint = (
                "the block broker is missing or empty",
                "merlin config update-broker --help shows how to fill it",
            )
            place = self._tree.get("broker").key_place
            self._findings.error(place if place != NOWHERE else (1, 1), message, hint=hint, code="missing")
            return None
        self._check_keys(("broker",), _SERVER_KEYS)
        self._check_keys(("results_backend",), _BACKEND_KEYS)
        broker = self._server("broker")
        backend = self._backend(broker)
        key = self._text("results_backend", "encryption_key")
        if broker is None or backend is None:
            return None
        is_key_given = bool(self._env.get("MERLIN_KEY_FILE"))
        path = self._context.path
        return Config(
            broker=broker,
            backend=backend,
            key_path=self._absolute(key, path) if key and not is_key_given else default_key_path(self._env),
            origin=origin,
            path=path,
            celery=overrides,
            is_key_given=is_key_given,
        )

    def _absolute(self, text: str, path: Path) -> Path:
        return absolute(text, self._env, path.parent)

    # ------------------------------------------------------------------- findings

    def _error(self, block: str, key: str, message: str, hint: str = "", code: str = "value") -> None:
        """An error at a key, or at its block if that does not have the key."""
        self._findings.error(self._place(block, key), f"{block}.{key}: {message}", hint=hint, code=code)

    def _warning(self, block: str, key: str, message: str, hint: str = "", code: str = "value") -> None:
        self._findings.warning(self._place(block, key), f"{block}.{key}: {message}", hint=hint, code=code)

    def _place(self, block: str, key: str) -> Place:
        entry, item = self._tree.get(block), self._tree.get(block, key)
        places = (item.place, item.key_place, entry.key_place, entry.place, (1, 1))
        return next(place for place in places if place != NOWHERE)

    def _check_keys(self, path: tuple[str, ...], known: Collection[str]) -> None:
        """Report unknown keys: one that looks mistyped is an error, any other one a warning (upstream ignores them)."""
        for key, item in self._written.get(*path).mapping.items():
            if key not in known:
                report = self._findings.error if did_you_mean(key, known) else self._findings.warning
                message = f"key {key!r} in {'.'.join(path) or 'app.yaml'} has no meaning here"
                report(item.key_place, message, hint=allowed(key, known), code="unknown-key")

    def _text(self, block: str, key: str) -> str:
        """A single value; "" if it is not given, or (with a finding) if it is no single value."""
        entry = self._tree.get(block, key)
        try:
            return "" if entry is MISSING else word(to_data(entry))
        except Problem as problem:
            self._error(block, key, str(problem), problem.hint, problem.code)
            return ""

    # -------------------------------------------------------------------- servers

    def _backend(self, broker: Endpoint | None) -> Endpoint | None:
        block = self._tree.get("results_backend")
        name = self._text("results_backend", "name").lower()
        if name not in OTHER_BACKENDS and (name or "url" in block.mapping):
            backend = self._server("results_backend")
            if backend is not None and not backend.is_redis:
                message = "the progress of studies is kept in Redis, not in RabbitMQ"
                self._error("results_backend", "name", message, "name: redis or rediss")
            return backend
        if broker is not None and not broker.is_redis:
            hint = "name: rediss (or redis) with server, port and password; `merlin server start` runs one"
            message = "a RabbitMQ broker needs a Redis beside it, which holds the progress of studies"
            self._error("results_backend", "name", message, hint, "no-redis")
        elif broker is not None and name:
            message = f"{name} is not used: progress is kept in the broker's Redis"
            self._warning("results_backend", "name", message)
        return broker

    def _server(self, block: str) -> Endpoint | None:
        if "url" in self._tree.get(block).mapping:
            try:
                return parse_url(self._text(block, "url"), self._env)
            except Problem as problem:
                self._error(block, "url", str(problem), problem.hint, "url")
                return None
        name = self._text(block, "name").lower()
        if (kind := KIND_OF_NAME.get(name)) is None:
            self._report_unknown_name(block, name)
            return None
        if kind.startswith("redis") and "vhost" in self._tree.get(block).mapping:
            hint = "db_num: 0 names its database; remove vhost"
            self._warning(block, "vhost", "means nothing to Redis", hint, "unknown-key")
        found = self._validated(block, kind)
        if isinstance(found, NetworkBlock):
            return self._on_network(block, kind, found)
        if isinstance(found, SocketBlock):
            account = {"username": found.username, "password": found.password}
            return Endpoint(kind=kind, socket_path=found.path, db=found.db_num, **account)
        return None

    def _report_unknown_name(self, block: str, name: str) -> None:
        known = f"known: {', '.join(KIND_OF_NAME)}"
        if not name:
            self._error(block, "name", "which kind of server it is, is missing", known, "missing")
        elif any(character in name for character in ":/@"):  # a URL, perhaps with a password in it
            self._error(block, "name", "must be one word", f"{known}; a whole URL is given as url:")
        else:
            hint = allowed(name, KIND_OF_NAME, "known")
            self._error(block, "name", f"{name!r} is not a known kind of server", hint)

    def _validated(self, block: str, kind: Kind) -> ServerBlock | None:
        """The block as the type for this kind of server; None (with findings) if it does not fit."""
        entry = self._tree.get(block)
        given = {
            key.removeprefix("ssl_"): item for key, item in entry.mapping.items() if key.startswith("ssl_")
        }
        given |= {key: item for key, item in entry.mapping.items() if not key.startswith("ssl_")}
        if kind not in ("rediss", "amqps"):
            self._refuse_half_encrypted(block, kind, given)
            given = {key: item for key, item in given.items() if key not in _TLS_KEYS}
        tree = replace(self._tree, content={block: replace(entry, content=given)})
        data = to_data(tree.get(block))
        found = validate_as(
            BLOCK_OF_KIND[kind], data, tree, self._findings, within=(block,), context=self._context
        )
        for key, message, hint in self._context.warnings:
            self._warning(block, key, message, hint, "open-secret")
        self._context.warnings.clear()
        return found

    def _on_network(self, block: str, kind: Kind, found: NetworkBlock) -> Endpoint | None:
        tls = None
        if kind in ("rediss", "amqps"):
            try:
                tls = Tls(**found.model_dump(include=set(_TLS_KEYS)))
            except Problem as problem:
                self._error(block, "keyfile", str(problem), problem.hint)
            self._warn_about_tls(block, found)
        common: dict[str, Any] = {
            "kind": kind,
            "host": found.server,
            "port": found.port or DEFAULT_PORTS[kind],
            "password": found.password,
            "tls": tls,
        }
        if isinstance(found, RedisBlock):
            return Endpoint(**common, username=found.username, db=found.db_num)
        assert isinstance(found, RabbitBlock)
        me = "" if found.username and found.vhost else user_name()
        return Endpoint(**common, username=found.username or me, vhost=found.vhost or me)

    def _warn_about_tls(self, block: str, found: NetworkBlock) -> None:
        if "ssl_protocol" in self._tree.get(block).mapping:
            message = "is not used: the newest protocol that both sides know is chosen"
            self._warning(block, "ssl_protocol", message)
        if found.cert_reqs == "none":
            message = "none: anybody on the way can pretend to be the server and read the password"
            hint = "cert_reqs: required, with ca_certs: FILE if your site has its own authority"
            self._warning(block, "cert_reqs", message, hint, "unverified")

    def _refuse_half_encrypted(self, block: str, kind: Kind, given: Mapping[str, Entry]) -> None:
        """Report certificates for a plain connection: a user who names certificates expects encryption."""
        asks = [key for key in _TLS_KEYS if key in given]
        is_required = "cert_reqs" in asks and given["cert_reqs"].text.lower() == "required"
        if kind != "redis+socket" and (is_required or {"ca_certs", "certfile", "keyfile"} & set(asks)):
            hint = f"write name: {'rediss' if kind == 'redis' else 'rabbitmq'}"
            self._error(block, "name", f"{kind} is not encrypted, but {asks[0]} asks for it", hint, "no-tls")

    # --------------------------------------------------------------------- Celery

    def _celery(self) -> dict[str, Any]:
        self._check_keys(("celery",), _CELERY_KEYS)
        block = self._tree.get("celery").mapping
        for key in ("omit_queue_tag", "queue_tag"):
            if key in block:
                self._warning("celery", key, "is not used: queues are always called [merlin]_NAME")
        # upstream's template says one, its code the other
        key = "overrides" if "overrides" in block else "override"
        if key not in block:
            return {}
        if not isinstance(block[key].content, dict):
            self._error("celery", key, "must be a mapping of Celery settings and their values", code="type")
            return {}
        values: dict[str, Any] = typed(to_data(block[key]))
        for name, value in values.items():
            self._check_setting(f"celery.{key}", name, value, block[key].mapping[name])
        return values

    def _check_setting(self, block: str, name: str, value: object, entry: Entry) -> None:
        """Report settings that allow anything but JSON in messages, and settings that name servers a second time."""
        self._check_setting_name(block, name, entry.key_place)
        given = value if isinstance(value, list) else [value]
        setting = name.lower().removeprefix("celery_")  # Celery takes its old names, too
        if setting in _SERIALIZERS + _CONTENT_TYPES and any(
            v not in ("json", "application/json") for v in given
        ):
            message, code = "messages are JSON and nothing else", "not-json"
        elif setting in _DECIDED_ABOVE:
            message, code = f"the server is named in the block {_DECIDED_ABOVE[setting]}", "two-places"
        else:
            return
        place = entry.place if entry.place != NOWHERE else entry.key_place
        self._findings.error(place, f"{block}.{name}: {message}", hint="remove this line", code=code)

    def _check_setting_name(self, block: str, name: str, place: Place) -> None:
        """Report an unknown name, which Celery ignores, and an old name, with which Celery stops beside new ones."""
        if name in SETTINGS or name in _UPSTREAMS_SETTINGS:
            return
        message = f"{block}: {name!r} is not a setting of Celery"
        if name.isupper():
            new = new_name(name)
            hint = f"did you mean {new!r}?" if new else "write the name that it has in Celery 4 and later"
            message = f"{message}: it is a name of Celery 3"
            self._findings.error(place, message, hint=hint, code="unknown-key")
            return
        slip = did_you_mean(name, SETTINGS, cutoff=SLIP)
        report = self._findings.error if slip else self._findings.warning
        hint = slip or "https://docs.celeryq.dev/en/stable/userguide/configuration.html"
        report(place, message, hint=hint, code="unknown-key")
