"""Does a server answer, and if not, why? An answer comes within the time limit, whatever the network does."""

from __future__ import annotations

import errno
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from merlin.config.model import STARS, Endpoint
from merlin.config.redis_library import impatient_client, load_redis

TIMEOUT_S = 2.0
LOOPBACK = ("127.", "::1", "localhost")


class Reach(Struct, frozen=True, kw_only=True):
    """What a server said, or why it said nothing."""

    ok: bool
    version: str = ""
    latency_ms: float | None = None  # of one round trip on an open connection
    detail: str = ""  # one sentence that names the product, host and port
    hint: str = ""  # what to do; "" if all is well; of a server that answers, a warning


def check_endpoint(endpoint: Endpoint, timeout_s: float = TIMEOUT_S) -> Reach:
    """Connect, log in, and ask for the version; never raises, and the server has `timeout_s` for all of it."""
    _load_client(endpoint)
    answers: queue.SimpleQueue[Reach] = queue.SimpleQueue()
    # a thread, because the lookup of a host name and a TLS handshake have no time limit
    thread = threading.Thread(
        target=lambda: answers.put(_check(endpoint, 0.8 * timeout_s)), name="check-endpoint", daemon=True
    )
    thread.start()
    try:
        return answers.get(timeout=0.95 * timeout_s)
    except queue.Empty:
        return Reach(ok=False, detail=f"{_who(endpoint)} did not answer within {timeout_s:g} s", hint=_SILENT)


def _load_client(endpoint: Endpoint) -> None:
    """Load the client library before the time limit begins: a slow file system may take longer than the server."""
    if endpoint.is_redis:
        load_redis()
        import redis.backoff
        import redis.retry  # noqa: F401
    else:
        import kombu.connection
        import kombu.transport.pyamqp  # noqa: F401


def _check(endpoint: Endpoint, timeout_s: float) -> Reach:
    probe: Callable[[Endpoint, float], Reach] = _ask_redis if endpoint.is_redis else _ask_rabbitmq
    try:
        return probe(endpoint, timeout_s)
    except Exception as error:  # noqa: BLE001  a check must end in an answer, whatever a client library throws
        detail, hint = explain(error, endpoint)
        return Reach(ok=False, detail=detail, hint=hint)


def _ask_redis(endpoint: Endpoint, timeout_s: float) -> Reach:
    import redis

    client = impatient_client(endpoint, timeout_s)
    try:
        client.ping()
        start = time.perf_counter()
        client.ping()
        latency_ms = 1000 * (time.perf_counter() - start)
        try:
            version = str(client.info("server").get("redis_version", ""))
        except redis.ResponseError:  # the account may use the server without looking at it
            version = ""
        hint = OPEN_TO_ALL if not endpoint.password and _is_open_to_others(client, endpoint) else ""
    finally:
        client.close()
    return Reach(
        ok=True, version=version, latency_ms=latency_ms, detail=f"{_who(endpoint)} answers", hint=hint
    )


def _is_open_to_others(client: Any, endpoint: Endpoint) -> bool:
    """True if other machines can reach a Redis that accepts us without a password."""
    import redis

    if endpoint.tls is not None and endpoint.tls.certfile:  # it asks for certificates
        return False
    if endpoint.kind != "redis+socket" and not is_loopback(endpoint.host):
        return True
    try:
        bound = str(client.config_get("bind").get("bind", "")).split()
        is_protected = client.config_get("protected-mode").get("protected-mode") == "yes"
    except redis.ResponseError:  # we may not ask
        return False
    return not is_protected and not (bound and all(is_loopback(host.removeprefix("-")) for host in bound))


def is_loopback(host: str) -> bool:
    """True if this name or address stands for this machine, and no other machine can use it."""
    found = [host] if host.startswith(LOOPBACK) else addresses(host)
    return bool(found) and all(address.startswith(LOOPBACK) for address in found)


def addresses(host: str) -> list[str]:
    """What a name stands for; nothing, if nobody knows it."""
    try:
        return [str(address[0]) for *_, address in socket.getaddrinfo(host, None)]
    except OSError:
        return []


def _ask_rabbitmq(endpoint: Endpoint, timeout_s: float) -> Reach:
    import kombu.connection

    connect: Any = kombu.connection.Connection  # kombu has no types
    connection = connect(
        endpoint.url,
        ssl=endpoint.broker_use_ssl or False,
        connect_timeout=timeout_s,
        transport_options={"read_timeout": timeout_s, "write_timeout": timeout_s},
    )
    opened = connection.transport.establish_connection()  # connect() would try again and again
    try:
        version = str(opened.server_properties.get("version", ""))
        start = time.perf_counter()
        opened.channel().close()
        latency_ms = 500 * (time.perf_counter() - start)  # opening and closing are a round trip each
    finally:
        connection.transport.close_connection(opened)
    return Reach(ok=True, version=version, latency_ms=latency_ms, detail=f"{_who(endpoint)} answers")


def _who(endpoint: Endpoint) -> str:
    return f"{endpoint.product} at {endpoint.address}"


OPEN_TO_ALL = (
    "it has no password, and other machines reach it: whoever finds it can read, change and delete your studies' "
    "progress; give it one (requirepass in redis.conf, password: in app.yaml), or bind it to 127.0.0.1"
)
OPEN_TO_HOLDERS = (
    "Other machines can connect, and its password is all that keeps them out; the password, and everything else, goes "
    "over the network unencrypted. Who has it can read and delete your studies' progress (but run nothing as you: "
    "messages are sealed with your key). Do this in a network that you trust."
)

_UNREACHABLE = {errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.EADDRNOTAVAIL}
_BAD_FILE = {
    "NO_CERTIFICATE_OR_CRL_FOUND", "PEM_LIB", "NO_START_LINE", "BAD_END_LINE", "KEY_VALUES_MISMATCH", "ASN1_LIB",
}  # fmt: skip
_OUR_FILES = "check the files of ca_certs, certfile and keyfile"
_SILENT = "a firewall may drop the packets, the host may be down, or the server may hang"


def explain(error: BaseException, endpoint: Endpoint) -> tuple[str, str]:
    """What happened to a connection in a sentence with host and port, and what to do; free of secrets."""
    chain = list(_causes(error))
    for explanation in (_tls_trouble, _network_trouble, _login_trouble, _server_trouble):
        for cause in chain:
            if found := explanation(cause, endpoint):
                what, hint = found
                return f"{_who(endpoint)} {what}", hint
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    if endpoint.password:
        text = text.replace(endpoint.password.reveal(), STARS)
    return f"{_who(endpoint)} cannot be used: {text}", ""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what led to it, the innermost last."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _tls_trouble(error: BaseException, endpoint: Endpoint) -> tuple[str, str] | None:
    if isinstance(error, ssl.SSLCertVerificationError):
        why = getattr(error, "verify_message", "") or "it is not trusted"
        if "ostname" in why or "IP address" in why:
            hint = "write as server the name that stands in the certificate"
        elif "extension" in why:
            hint = "Python 3.13 and later want it; let the authority be made anew with it"
        else:
            hint = "name the authority that signed it: ca_certs: FILE"
        return f"showed a certificate that cannot be trusted: {why}", hint
    plain = "redis" if endpoint.is_redis else "amqp"
    if isinstance(error, TimeoutError) and "handshake" in str(error):
        return "does not answer in TLS", f"check the port, or write name: {plain} for no encryption"
    if endpoint.tls is not None and isinstance(error, FileNotFoundError | PermissionError):
        return f"was not asked: a certificate file cannot be read: {error.strerror}", _OUR_FILES
    if not isinstance(error, ssl.SSLError):
        return None
    reason = (error.reason or "").upper()
    if reason in _BAD_FILE:
        return f"was not asked: a certificate file is damaged, or the key is another's ({reason})", _OUR_FILES
    if "CERTIFICATE_REQUIRED" in reason or "UNKNOWN_CA" in reason or "BAD_CERTIFICATE" in reason:
        return "refuses our certificate", "give one that it accepts: certfile: FILE and keyfile: FILE"
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason or isinstance(error, ssl.SSLEOFError):
        return "does not speak TLS on this port", f"check the port, or write name: {plain} for no encryption"
    return f"and we do not agree on TLS: {error.reason or type(error).__name__}", _OUR_FILES


def _network_trouble(error: BaseException, endpoint: Endpoint) -> tuple[str, str] | None:
    if isinstance(error, socket.gaierror):
        hint = "check server: for a slip; can this machine look it up?"
        return "cannot be found: the host name is unknown", hint
    if isinstance(error, ConnectionRefusedError):
        start = "merlin server start, if it is your private one" if endpoint.is_redis else "start it"
        return "refuses connections: nothing listens there", f"is it running, and is this its port? {start}"
    if isinstance(error, FileNotFoundError) and endpoint.kind == "redis+socket":
        return "is not there: no such socket", "is the server running, and is path: right?"
    if isinstance(error, PermissionError) and endpoint.kind == "redis+socket":
        return "cannot be opened: the socket belongs to others", "ask its owner for access"
    if isinstance(error, TimeoutError) or type(error).__name__ == "TimeoutError":  # redis-py has its own
        return "did not answer in time", _SILENT
    if isinstance(error, OSError) and error.strerror and error.errno in _UNREACHABLE:
        hint = "is the host up, and in a network that this machine sees?"
        return f"cannot be reached: {error.strerror}", hint
    return None


def _login_trouble(error: BaseException, endpoint: Endpoint) -> tuple[str, str] | None:
    name, text, code = type(error).__name__, str(error), getattr(error, "reply_code", 0)
    account = f"user {endpoint.username!r}" if endpoint.username else "the default user"
    if "NOAUTH" in text or (name == "AuthenticationError" and not endpoint.password):
        return "wants a password, and none is configured", "password: FILE in app.yaml, or in the URL"
    is_refused = any(words in text for words in ("WRONGPASS", "invalid username-password"))
    if code == 403 and "Login was refused" not in text:
        return (
            f"does not allow {account} to use its queues",
            "ask for the rights to configure, write and read",
        )
    if is_refused or name == "AuthenticationError" or code == 403:
        return f"refuses the password of {account}", "check username: and the file that password: names"
    if code == 530:
        return f"has no virtual host {endpoint.vhost!r} for {account}", "check vhost:, or ask for it"
    if "NOPERM" in text or name == "NoPermissionError":
        return f"does not allow {account} what is needed", "ask for access to all keys and commands"
    return None


def _server_trouble(error: BaseException, endpoint: Endpoint) -> tuple[str, str] | None:
    name, text = type(error).__name__, str(error)
    if name == "BusyLoadingError" or text.startswith("LOADING"):
        return "is still loading its data", "try again in a moment"
    if "protected mode" in text:
        return "allows no other machines: it has no password", "give the server a password"
    if "DB index is out of range" in text:
        return f"has no database {endpoint.db}", "check db_num:"
    if name == "InvalidResponse":
        return "does not speak the Redis protocol", "is this the right port?"
    closed = isinstance(error, ConnectionResetError | BrokenPipeError | EOFError) or "closed" in text.lower()
    if closed or name == "UnexpectedFrame":
        encrypted = "rediss" if endpoint.is_redis else "rabbitmq"
        hint = (
            f"if it wants TLS, write name: {encrypted}"
            if endpoint.tls is None
            else "does it want a certificate?"
        )
        return "closed the connection before it answered", hint
    return None
