"""What a stranger puts into a queue: nothing of it is sealed with our key, and all of it has to be refused."""

from __future__ import annotations

import base64
import bz2
import gzip
import json
import random
from collections.abc import Iterator
from typing import Any, Protocol

from merlin.execution.distributed.messages import Notice, seal_notice

DEEP = 200_000
BOMB = bz2.compress(bytes(10_000_000)) * 60  # some kilobytes, of which 600 MB come
TASKS = (
    "backend_cleanup",
    "chord_unlock",
    "accumulate",
    "map",
    "starmap",
    "chunks",
    "group",
    "chain",
    "chord",
)
SIGNATURE = {
    "task": "celery.map",
    "args": [SIGN := {"task": "merlin.chunk", "args": [], "kwargs": {}}, [[1]]],
}
NOTICE = Notice(study="s", workspace="/tmp", plan="p", session="at1.0-0", instance="i", lo=0, hi=1, lease="l")
FORGED = seal_notice(NOTICE, b"another key" * 3)
PARTS: dict[str, Any] = {
    "headers": {"task": "merlin.chunk", "id": "1"},
    "content_type": "application/json",
    "content_encoding": "utf-8",
    "body": json.dumps([[FORGED], {}, {}]).encode(),
}

JUNK: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    "x",
    "\ud800",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"a": []},
)


def bodies() -> Iterator[bytes]:
    """Bodies in place of the one that is expected."""
    yield from (b"", b"{}", b"5", b"[]", b"null", b'"text"', b"no JSON", b"\xff\xfe\x00", b"NaN", b"[NaN]")
    yield from (b"[" * DEEP, b'{"a":' * DEEP, b"[[" + b"{" * 20_000, b"[" * 20_000 + b"]" * 20_000)
    yield from (b"9" * 6000, b" " * 500_000, b'"' + b"x" * 5_000_000 + b'"')
    envelopes: list[Any] = [*JUNK, FORGED | {"more": 1}, FORGED | {"mac": "é" * 64}, FORGED | {"body": {}}]
    for envelope in envelopes:
        yield json.dumps([[envelope], {}, {}]).encode()
    for whole in (
        [[]],
        [[], {}],
        [[], {}, {}],
        [[FORGED, 1], {}, {}],
        [[FORGED], 1, 2],
        [[FORGED], {"a": 1}, {}],
    ):
        yield json.dumps(whole).encode()
    for embed in ("callbacks", "errbacks", "chain", "chord"):
        for value in ([SIGNATURE], SIGNATURE, 5):
            yield json.dumps([[FORGED], {}, {embed: value}]).encode()
    yield json.dumps(
        {"task": "merlin.chunk", "id": "1", "args": [FORGED], "kwargs": {}}
    ).encode()  # the old way


def headers() -> Iterator[Any]:
    for name in TASKS:
        yield {"task": f"celery.{name}", "id": "1"}
    yield from ({"id": "1"}, {"task": "merlin.chunk"}, {"task": "merlin.other", "id": "1"})
    known = PARTS["headers"]
    for name in (
        "eta",
        "expires",
        "timelimit",
        "retries",
        "group",
        "stamps",
        "shadow",
        "id",
        "origin",
        "meth",
    ):
        for value in (5, "x", "9999-12-31T23:59:59", [1], {"a": 1}):
            yield known | {name: value}
    yield known | {"stamped_headers": ["a"], "a": {"b": 1}, "argsrepr": 5, "ignore_result": False}


def compressed() -> Iterator[dict[str, Any]]:
    for compression in ("application/x-gzip", "zlib", "bzip2", "lzma", "zstd", "x"):
        yield PARTS | {"headers": PARTS["headers"] | {"compression": compression}}
    for compression, body in (("bzip2", BOMB), ("gzip", gzip.compress(bytes(30_000_000)))):
        yield PARTS | {"headers": PARTS["headers"] | {"compression": compression}, "body": body}


def messages() -> Iterator[dict[str, Any]]:
    """For both brokers: `PARTS` with one of them changed."""
    for body in bodies():
        yield PARTS | {"body": body}
    for found in headers():
        yield PARTS | {"headers": found}
    for content_type in ("application/data", "application/x-python-serialize", "application/x-yaml", "x", ""):
        yield PARTS | {"content_type": content_type}
    for encoding in ("binary", "idna", "punycode", "zlib", "utf-16", "unicode_escape", "nonsense", "\x00"):
        yield PARTS | {"content_encoding": encoding}
    yield from compressed()


class Broker(Protocol):
    def send(self, queue: str) -> int:
        """Put everything into the queue; returns how many messages that were."""

    def send_bytes(self, queue: str, bodies: list[bytes]) -> int:
        """Put these bodies into it, with the headers that are expected."""


class HostileRedis:
    """Writes kombu's envelopes into lists, and what is none."""

    def __init__(self, server: Any, rng: random.Random) -> None:
        self._server, self._rng = server, rng

    def _push(self, queue: str, texts: list[str | bytes]) -> int:
        self._rng.shuffle(texts)
        with self._server.client() as client:
            for text in texts:
                client.rpush(queue, text)
        return len(texts)

    def send(self, queue: str) -> int:
        return self._push(queue, [*self._raw(), *map(self._text, messages()), *self._envelopes()])

    def send_bytes(self, queue: str, bodies: list[bytes]) -> int:
        return self._push(queue, [self._text(PARTS | {"body": body}) for body in bodies])

    def _text(self, parts: dict[str, Any]) -> str:
        return json.dumps(self._envelope(parts))

    def _envelope(self, parts: dict[str, Any]) -> dict[str, Any]:
        tag = self._rng.choice(["the same", f"{self._rng.random()}"])
        return {
            "body": base64.b64encode(parts["body"]).decode(),
            "content-type": parts["content_type"],
            "content-encoding": parts["content_encoding"],
            "headers": parts["headers"],
            "properties": {
                "delivery_tag": tag,
                "delivery_info": {"exchange": "", "routing_key": "x"},
                "body_encoding": "base64",
                "priority": 3,
            },
        }

    def _raw(self) -> Iterator[str | bytes]:
        yield from ("", "no JSON", b"\xff", "1", "[]", "{}", "null", '"x"', "NaN", '{"body": 1}', "9" * 6000)
        yield from (
            '{"body": "x", "headers": {}}',
            "[" * DEEP,
            '{"a":' * DEEP,
            b"\x00" * 100_000,
            b"\xff\xfe{\x00",
        )

    def _envelopes(self) -> Iterator[str]:
        whole = self._envelope(PARTS)
        for name, value in whole.items():
            yield json.dumps({n: v for n, v in whole.items() if n != name})
            yield from (json.dumps(whole | {name: junk}) for junk in JUNK if junk != value)
        properties = whole["properties"]
        for name in properties:
            yield json.dumps(whole | {"properties": {n: v for n, v in properties.items() if n != name}})
            yield from (json.dumps(whole | {"properties": properties | {name: junk}}) for junk in JUNK)
        for name in ("exchange", "routing_key", "consumer_tag", "redelivered"):
            for junk in JUNK:
                info = properties["delivery_info"] | {name: junk}
                yield json.dumps(whole | {"properties": properties | {"delivery_info": info}})
        yield json.dumps(whole | {"properties": properties | {"reply_to": "merlin", "correlation_id": [1]}})


class HostileRabbit:
    """Publishes frames, with properties that no client library would write."""

    def __init__(self, server: Any, rng: random.Random) -> None:
        self._server, self._rng = server, rng

    def send(self, queue: str) -> int:
        return self._publish(queue, [*map(self._message, messages()), *self._odd()])

    def send_bytes(self, queue: str, bodies: list[bytes]) -> int:
        return self._publish(queue, [self._message(PARTS | {"body": body}) for body in bodies])

    def _publish(self, queue: str, found: list[Any]) -> int:
        self._rng.shuffle(found)
        with self._server.connection() as connection, connection.channel() as channel:
            for message in found:
                channel.basic_publish(message, exchange="", routing_key=queue)
        return len(found)

    def _message(self, parts: dict[str, Any], **more: Any) -> Any:
        from amqp.basic_message import Message

        known = {"content_type": parts["content_type"], "content_encoding": parts["content_encoding"]}
        return Message(parts["body"], **known, application_headers=parts["headers"], **more)

    def _odd(self) -> Iterator[Any]:
        from amqp.basic_message import Message

        yield Message(PARTS["body"])
        yield Message(b"")
        for name in ("content_type", "content_encoding", "correlation_id", "reply_to", "message_id", "type"):
            yield Message(PARTS["body"], **{name: b"\xff\xfe"})
        for name in ("correlation_id", "reply_to", "message_id", "type"):
            yield self._message(PARTS, **{name: b"\xff"})
        for table in (
            _deep_table(20_000),
            _field(b"k", b"T" + b"\xff" * 8),
            _field(b"\xff", b"S\0\0\0\1\xff"),
        ):
            yield _with_table(table)


def _field(name: bytes, value: bytes) -> bytes:
    return bytes([len(name)]) + name + value


def _deep_table(depth: int) -> bytes:
    """A table in a table in a table …"""
    out = b""
    for _ in range(depth):
        out = _field(b"", b"F" + len(out).to_bytes(4, "big") + out)
    return out


def _with_table(table: bytes) -> Any:
    """A message whose properties are a table of headers and nothing else."""
    from amqp.basic_message import Message

    class Odd(Message):  # type: ignore[misc]
        def _serialize_properties(self) -> bytes:
            return b"\x20\x00" + len(table).to_bytes(4, "big") + table

    return Odd(PARTS["body"])
