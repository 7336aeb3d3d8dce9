"""What a configuration is, once it is known to be right."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from msgspec import Struct, field

from merlin.base.document.scalars import Problem
from merlin.config.keys import given_key, make_key
from merlin.errors import Diagnostic

CertReqs = Literal["required", "optional", "none"]
Kind = Literal["redis", "rediss", "redis+socket", "amqp", "amqps"]
DEFAULT_PORTS: Mapping[str, int] = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671}
# upstream's names; `rabbitmq` has always meant the encrypted protocol
KIND_OF_NAME: Mapping[str, Kind] = {
    "redis": "redis",
    "rediss": "rediss",
    "redis+socket": "redis+socket",
    "rabbitmq": "amqps",
    "amqps": "amqps",
    "amqp": "amqp",
}

QUEUE_TAG = "[merlin]_"  # as upstream shows its queues
STARS = "******"


class Secret:
    """A text that is not shown by accident: printed, logged, or put into JSON, it appears as stars."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return STARS if self._text else "(none)"

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, memo: object) -> Secret:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a secret is not pickled")


NO_SECRET = Secret()


class PasswordProvider:
    """Gives a password to redis-py when a connection is opened, so that no printed options contain it."""

    def __init__(self, username: str, password: Secret) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        password = self._password.reveal()
        return (self._username, password) if self._username else (password,)


class Tls(Struct, frozen=True, kw_only=True):
    """How a server's certificate is checked, and what we show it; files are absolute paths. Raises Problem."""

    cert_reqs: CertReqs = "required"
    ca_certs: str = ""  # "": the authorities that the system trusts
    certfile: str = ""
    keyfile: str = ""
    check_hostname: bool = True

    def __post_init__(self) -> None:
        if self.keyfile and not self.certfile:
            raise Problem("keyfile is given without certfile", "the server is shown both, or neither")

    @property
    def verify_mode(self) -> ssl.VerifyMode:
        modes = {"required": ssl.CERT_REQUIRED, "optional": ssl.CERT_OPTIONAL, "none": ssl.CERT_NONE}
        return modes[self.cert_reqs]

    @property
    def checks_hostname(self) -> bool:
        return self.check_hostname and self.cert_reqs != "none"

    def for_redis(self) -> dict[str, Any]:
        """Keyword arguments of redis-py's connections, and `broker_use_ssl` of a Redis broker."""
        files = {f"ssl_{name}": path for name, path in self._files().items()}
        return {"ssl_cert_reqs": self.verify_mode, "ssl_check_hostname": self.checks_hostname, **files}

    def for_amqp(self, host: str) -> dict[str, Any]:
        """The `ssl` argument of kombu and `broker_use_ssl` of a RabbitMQ broker."""
        # py-amqp compares the certificate's name only if it is told which name to expect
        name = {"server_hostname": host} if self.checks_hostname else {}
        return {"cert_reqs": self.verify_mode, **name, **self._files()}

    def _files(self) -> dict[str, str]:
        files = {"ca_certs": self.ca_certs, "certfile": self.certfile, "keyfile": self.keyfile}
        return {name: path for name, path in files.items() if path}


class Endpoint(Struct, frozen=True, kw_only=True):
    """One server. Its repr and its fields can be shown; `url` holds the password and cannot."""

    kind: Kind
    host: str = ""
    port: int = 0
    username: str = ""
    password: Secret = NO_SECRET
    db: int = 0  # Redis
    vhost: str = ""  # RabbitMQ
    socket_path: str = ""  # redis+socket
    tls: Tls | None = None  # not None for rediss and amqps

    @property
    def is_redis(self) -> bool:
        return self.kind.startswith("redis")

    @property
    def product(self) -> str:
        return "Redis" if self.is_redis else "RabbitMQ"

    @property
    def address(self) -> str:
        """`host:port`, or the path of the socket, for messages."""
        if self.kind == "redis+socket":
            return self.socket_path
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """What kombu and Celery take; HOLDS THE PASSWORD."""
        return self._url(quote(self.password.reveal(), safe=""))

    @property
    def safe_url(self) -> str:
        """`url` with stars for the password."""
        return self._url(STARS if self.password else "")

    def _url(self, password: str) -> str:
        name = quote(self.username, safe="")
        account = f"{name}:{password}@" if password else f"{name}@" if name else ""
        if self.kind == "redis+socket":
            return f"redis+socket://{account}{quote(self.socket_path)}?virtual_host={self.db}"
        path = str(self.db) if self.is_redis else quote(self.vhost, safe="")
        return f"{self.kind}://{account}{self.address}/{path}"

    @property
    def broker_use_ssl(self) -> dict[str, Any] | None:
        """Celery's setting of this name, which is also kombu's `ssl` argument; None without TLS."""
        if self.tls is None:
            return None
        return self.tls.for_redis() if self.is_redis else self.tls.for_amqp(self.host)

    def redis_options(self) -> dict[str, Any]:
        """Keyword arguments for `redis.Redis`; time limits are the caller's. Raises ValueError for RabbitMQ."""
        if not self.is_redis:
            raise ValueError(f"{self.safe_url} is not Redis")
        out: dict[str, Any] = {"db": self.db}
        if self.kind == "redis+socket":
            out["unix_socket_path"] = self.socket_path
        else:
            out |= {"host": self.host, "port": self.port}
        if self.password:
            out["credential_provider"] = PasswordProvider(self.username, self.password)
        if self.tls is not None:
            out |= {"ssl": True, **self.tls.for_redis()}
        return out


class Config(Struct, frozen=True, kw_only=True, dict=True):
    """The broker that carries messages, the Redis that holds progress, and the user's key."""

    broker: Endpoint
    backend: Endpoint  # always Redis
    key_path: Path
    origin: str  # for people: "MERLIN_BROKER_URL", "MERLIN_CONFIG", "merlin config use", …
    path: Path | None = None  # the app.yaml, None for MERLIN_BROKER_URL
    celery: Mapping[str, Any] = field(default_factory=dict)  # celery.overrides
    warnings: tuple[Diagnostic, ...] = ()
    is_key_given: bool = False  # by MERLIN_KEY_FILE: then a missing key is an error

    @cached_property
    def key(self) -> bytes:
        """The user's key, made at its first use. Raises ConfigError if it is not safe to use, or is not there."""
        return given_key(self.key_path) if self.is_key_given else make_key(self.key_path)

    @cached_property
    def namespace(self) -> str:
        """Eight hexadecimal digits that keep this user's queues and keys apart from everybody else's."""
        return hashlib.sha256(b"merlin-namespace" + self.key).hexdigest()[:8]

    def queue_name(self, queue: str) -> str:
        """The name on the broker of a spec's task_queue."""
        return f"{QUEUE_TAG}{queue}@{self.namespace}"

    def display_queue(self, name: str) -> str:
        """A queue's name as people see it, without the namespace."""
        queue, at, namespace = name.rpartition("@")
        return queue if at and namespace == self.namespace else name

    def child_environment(self) -> dict[str, str]:
        """Variables with which a process started elsewhere finds the same configuration and key; no secrets."""
        out = {"MERLIN_KEY_FILE": str(self.key_path)}
        if self.path is not None:
            out["MERLIN_CONFIG"] = str(self.path)
        return out
