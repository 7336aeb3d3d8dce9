"""The keys of an app.yaml's block about a server, as types; no message repeats a value that could be a secret."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct, field
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainValidator, ValidationInfo

from merlin.base.document.field_types import Block, Flag
from merlin.base.document.scalars import Problem, is_scalar, to_int
from merlin.config.model import NO_SECRET, CertReqs, Secret
from merlin.config.places import absolute, looks_like_a_file, merlin_home
from merlin.config.url import cert_reqs_of

_PLACEHOLDER = re.compile(r"<[^<>]*>")
_MAX_PASSWORD_FILE_BYTES = 65536


class BlockContext(Struct, frozen=True):
    """What paths in the file are relative to, where secrets may lie, and the warnings about what was read."""

    env: Mapping[str, str]
    path: Path  # of app.yaml
    others_can_read: bool = False  # app.yaml itself
    certs: Path | None = None  # celery.certs
    warnings: list[tuple[str, str, str]] = field(default_factory=list)  # key, message, hint


def _context(info: ValidationInfo) -> BlockContext:
    assert isinstance(info.context, BlockContext)
    return info.context


def word(value: Any) -> str:
    """A single value as text. Raises Problem for a placeholder of the template."""
    if not is_scalar(value):
        raise Problem("must be one value, not a list or a mapping", code="type")
    text = str(value).strip()
    if _PLACEHOLDER.fullmatch(text):
        raise Problem(f"{text} is still the placeholder of the template", "put your own value there")
    return text


def _host(text: str) -> str:
    if any(character in text for character in "/@?# "):
        raise Problem("must be a host name or an address alone", "a whole URL is given as url: instead")
    return text.strip("[]")


def _socket_path(text: str) -> str:
    if not text.startswith("/"):
        raise Problem("must be the absolute path of the Redis socket", "path: /run/redis/redis.sock")
    return text


def _existing_file(text: str, info: ValidationInfo) -> str:
    context = _context(info)
    path = absolute(text, context.env, context.path.parent)
    candidates = [path, *([context.certs / path.name] if context.certs else [])]
    for candidate in candidates:
        if _exists(candidate):
            return str(candidate)
    where = " and ".join(map(str, candidates))
    raise Problem(f"the file does not exist: looked for {where}", code="missing-file")


def _password(value: Any, info: ValidationInfo) -> Secret:
    """The first line of the file that is named; or the value itself, if it does not look like a file's name.

    Upstream takes any value for the password where there is no such file.
    """
    text, context = word(value), _context(info)
    folders = [merlin_home(context.env), context.path.parent, *([context.certs] if context.certs else [])]
    for path in (absolute(text, context.env), *(folder / text for folder in folders)):
        if _exists(path):
            return _password_in(path, context)
    if looks_like_a_file(text):
        raise Problem(
            "there is no such password file",
            "name a file whose first line is the password: its path, or its name if it is in ~/.merlin; "
            "a password that looks like a path must be in a file",
            "missing-file",
        )
    if context.others_can_read:
        message = "other users can read this file, and a password stands in it"
        context.warnings.append(("password", message, f"chmod 600 {context.path}"))
    return Secret(text)


def _password_in(path: Path, context: BlockContext) -> Secret:
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(_MAX_PASSWORD_FILE_BYTES) if stat.S_ISREG(mode) else b""
        lines = raw.decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise Problem(f"the password file {path} cannot be read: {reason}", code="unreadable") from None
    if not lines or not lines[0].strip():
        raise Problem(f"the password file {path} has no password in its first line", code="empty")
    if mode & 0o077:
        context.warnings.append(
            ("password", f"other users can read the password file {path}", f"chmod 600 {path}")
        )
    return Secret(lines[0].strip())


def _exists(path: Path) -> bool:
    """True if the path exists and is not a directory; False for a text that cannot be a path."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False


Word = Annotated[str, BeforeValidator(word)]
ExistingFile = Annotated[Word, AfterValidator(_existing_file)]
Password = Annotated[Any, PlainValidator(_password)]  # a Secret
Database = Annotated[int, BeforeValidator(lambda value: to_int(word(value), 0, 1_000_000))]
Port = Annotated[int, BeforeValidator(lambda value: to_int(word(value), 1, 65535))]


class ServerBlock(Block):
    """The keys that every server may have; keys without a meaning are reported elsewhere."""

    model_config = ConfigDict(extra="ignore")

    username: Word = ""
    password: Password = NO_SECRET


class SocketBlock(ServerBlock):
    path: Annotated[Word, AfterValidator(_socket_path)] = Field(
        description="the absolute path of the Redis socket, e.g. /run/redis/redis.sock"
    )
    db_num: Database = 0


class NetworkBlock(ServerBlock):
    server: Annotated[Word, AfterValidator(_host)] = Field(description="the host name of the server")
    port: Port | None = None
    cert_reqs: Annotated[CertReqs, BeforeValidator(lambda value: cert_reqs_of(word(value)))] = "required"
    check_hostname: Flag = True
    ca_certs: ExistingFile = ""
    certfile: ExistingFile = ""
    keyfile: ExistingFile = ""


class RedisBlock(NetworkBlock):
    db_num: Database = 0


class RabbitBlock(NetworkBlock):
    password: Password = Field(description="RabbitMQ wants one; name the file that holds it")
    vhost: Word = ""
