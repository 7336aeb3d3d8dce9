"""Broker URLs: `redis://:password@host:6379/0`, `amqps://user:password@host/vhost?ssl_ca_certs=/ca.pem`.

A URL holds a password, so no message here ever repeats any part of one but its scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast, get_args
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from merlin.base.document.findings import allowed
from merlin.base.document.scalars import Problem, to_bool
from merlin.config.model import DEFAULT_PORTS, CertReqs, Endpoint, Kind, Secret, Tls
from merlin.config.places import absolute

KINDS: tuple[Kind, ...] = get_args(Kind)
_CERT_REQS: tuple[str, ...] = get_args(CertReqs)
_TLS_PARAMETERS = {f"ssl_{name}" for name in Tls.__struct_fields__}
_QUOTING = "in a password write / as %2F, # as %23, ? as %3F, @ as %40, % as %25"


def parse_url(url: str, env: Mapping[str, str]) -> Endpoint:
    """The server that a URL names. Raises Problem, whose text never repeats the URL."""
    scheme, separator, _ = url.strip().partition("://")
    if not separator:
        raise Problem(
            "this is not a URL", "write redis://:PASSWORD@HOST:6379/0 or amqps://USER:PASSWORD@HOST/VHOST"
        )
    if scheme.lower() not in KINDS:
        raise Problem(f"the URL scheme {scheme[:20]!r} is not known", allowed(scheme, KINDS, "known"))
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        parameters = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise Problem("the URL cannot be read", _QUOTING) from None
    kind = cast(Kind, scheme.lower())
    if parts.fragment:
        raise Problem("the URL ends in a #fragment", _QUOTING)
    if kind == "redis+socket":
        return _socket(parts, parameters)
    if not parts.hostname or "@" in parts.path:
        raise Problem("the URL names no host", _QUOTING)
    return Endpoint(
        kind=kind,
        host=parts.hostname,
        port=port if port is not None else DEFAULT_PORTS[kind],
        tls=_tls(kind, parameters, env),
        **(_redis_part(parts) if kind.startswith("redis") else _amqp_part(parts)),
    )


def _socket(parts: SplitResult, parameters: dict[str, str]) -> Endpoint:
    unknown = set(parameters) - {"virtual_host", "db"}
    if unknown:
        raise Problem(f"{min(unknown)!r} means nothing in a redis+socket URL", "known: virtual_host")
    if parts.hostname or not parts.path.startswith("/"):
        raise Problem("the socket's path must be absolute", "redis+socket:///run/redis.sock?virtual_host=0")
    return Endpoint(
        kind="redis+socket",
        socket_path=unquote(parts.path),
        username=unquote(parts.username or ""),
        password=Secret(unquote(parts.password or "")),
        db=_database(parameters.get("virtual_host", parameters.get("db", ""))),
    )


def _redis_part(parts: SplitResult) -> dict[str, Any]:
    return {
        "username": unquote(parts.username or ""),
        "password": Secret(unquote(parts.password or "")),
        "db": _database(parts.path.strip("/")),
    }


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit()):
        raise Problem(
            "what follows the port of a Redis URL is the number of a database", "redis://HOST:6379/0"
        )
    return int(text or 0)


def _amqp_part(parts: SplitResult) -> dict[str, Any]:
    return {
        "username": unquote(parts.username or "guest"),  # RabbitMQ's own default account
        "password": Secret(unquote(parts.password or "") or ("" if parts.username else "guest")),
        "vhost": unquote(parts.path[1:]) or "/",
    }


def _tls(kind: Kind, parameters: Mapping[str, str], env: Mapping[str, str]) -> Tls | None:
    for name in parameters:
        if name not in _TLS_PARAMETERS:
            hint = allowed(name, _TLS_PARAMETERS, "known")
            raise Problem(f"the URL parameter {name[:30]!r} is not known", hint)
    if kind not in ("rediss", "amqps"):
        if parameters:
            raise Problem(f"{min(parameters)} needs an encrypted connection", f"write {kind}s:// for TLS")
        return None
    given: dict[str, Any] = {name.removeprefix("ssl_"): value for name, value in parameters.items() if value}
    for name, value in given.items():
        if name == "cert_reqs":
            given[name] = cert_reqs_of(value)
        elif name == "check_hostname":
            given[name] = to_bool(value)
        else:
            given[name] = str(absolute(value, env))
            if not Path(given[name]).is_file():
                raise Problem(f"the file of ssl_{name} does not exist: {given[name]}")
    return Tls(**given)


def cert_reqs_of(text: str) -> str:
    """How the certificate of a server is checked: `required`, also written CERT_REQUIRED. Raises Problem."""
    wanted = text.lower().removeprefix("cert_")
    if wanted not in _CERT_REQS:
        raise Problem(f"cert_reqs {text[:30]!r} is not known", allowed(wanted, _CERT_REQS, "known"))
    return wanted
