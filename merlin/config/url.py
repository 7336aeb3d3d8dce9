"""Broker URLs: `redis://:password@host:6379/0`, `amqps://user:password@host/vhost?ssl_ca_certs=/ca.pem`.

A URL holds a password, so no message here ever repeats any part of one but its scheme.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from merlin.base.document.findings import allowed
from merlin.base.document.scalars import Problem
from merlin.config.model import DEFAULT_PORTS, Endpoint, Kind, Secret, Tls
from merlin.config.places import absolute

KINDS = ("redis", "rediss", "redis+socket", "amqp", "amqps")
_CERT_REQS = ("required", "optional", "none")
_TLS_PARAMETERS = {
    "ssl_cert_reqs": "cert_reqs",
    "ssl_ca_certs": "ca_certs",
    "ssl_certfile": "certfile",
    "ssl_keyfile": "keyfile",
    "ssl_check_hostname": "check_hostname",
}
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
            raise Problem(
                f"the URL parameter {name[:30]!r} is not known", allowed(name, _TLS_PARAMETERS, "known")
            )
    if kind not in ("rediss", "amqps"):
        if parameters:
            raise Problem(f"{min(parameters)} needs an encrypted connection", f"write {kind}s:// for TLS")
        return None
    given = {_TLS_PARAMETERS[name]: value for name, value in parameters.items()}
    cert_reqs, check_hostname = given.pop("cert_reqs", ""), given.pop("check_hostname", "")
    files = {name: absolute(value, env) for name, value in given.items() if value}
    for name, path in files.items():
        if not path.is_file():
            raise Problem(f"the file of ssl_{name} does not exist: {path}")
    return make_tls(
        cert_reqs=cert_reqs,
        check_hostname=check_hostname,
        files={name: str(path) for name, path in files.items()},
    )


def make_tls(*, cert_reqs: str, check_hostname: str, files: Mapping[str, str]) -> Tls:
    """What app.yaml or a URL says about TLS; "" means the default, which is to verify. Raises Problem."""
    wanted = cert_reqs.lower().removeprefix("cert_") or "required"
    if wanted not in _CERT_REQS:
        raise Problem(f"cert_reqs {cert_reqs[:30]!r} is not known", allowed(wanted, _CERT_REQS, "known"))
    check = check_hostname.lower() or "true"
    if check not in ("true", "false", "yes", "no", "1", "0"):
        raise Problem(f"check_hostname {check_hostname[:30]!r} is neither true nor false")
    if files.get("keyfile") and not files.get("certfile"):
        raise Problem("keyfile is given without certfile", "the server is shown both, or neither")
    return Tls(
        cert_reqs=wanted,  # type: ignore[arg-type]  # it is one of _CERT_REQS
        check_hostname=check in ("true", "yes", "1"),
        **files,
    )
