"""Accepts messages from a broker only if they hold an offer that is sealed with this user's key.

Anybody who can write into a queue can send anything, so only the sealed part of a message counts. Messages are parsed
within fixed limits, and a new message with only the sealed offer is passed on. All unsealed parts are dropped: times,
callbacks, priorities, reply addresses and task names.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from typing import Any

from merlin.errors import ForgedMessageError
from merlin.execution.distributed import names
from merlin.execution.distributed.messages import open_notice

MAX_MESSAGE_BYTES = 64 * 1024  # with its envelope; a notice with the longest path needs less than half
CONTENT_TYPE, ENCODING = "application/json", "utf-8"


def check_wrapping(content_type: object, encoding: object, headers: object) -> None:
    """Raise ForgedMessageError for properties that our messages never have. Nothing is decoded before this."""
    if not isinstance(headers, Mapping):
        raise ForgedMessageError("a message without headers")
    if headers.get("compression"):
        raise ForgedMessageError("a compressed message")
    if content_type != CONTENT_TYPE or encoding != ENCODING:
        raise ForgedMessageError("a message of another content type than ours")
    if headers.get("task") != names.TASK:
        raise ForgedMessageError("a message for another task than ours")


def sealed_envelope(body: bytes | str, key: bytes) -> dict[str, str]:
    """The envelope in the body of a message. Raises ForgedMessageError."""
    if len(body) > MAX_MESSAGE_BYTES:
        raise ForgedMessageError("a message that is too long")
    match _from_json(body):
        case [[envelope], _, _]:  # Celery's format: arguments, named arguments, options
            open_notice(envelope, key)
            return dict(envelope)
        case _:
            raise ForgedMessageError("a message with another body than ours")


def body_with(envelope: Mapping[str, str]) -> str:
    """The body of a message with only this envelope."""
    return json.dumps([[envelope], {}, {}])


def clean_headers() -> dict[str, Any]:
    return {"lang": "py", "task": names.TASK, "id": secrets.token_hex(8)}


def clean_redis_message(raw: bytes, queue: str) -> bytes:
    """Wrap the body of a message again in Kombu's format for a Redis list. The body itself is not read.

    Raises ForgedMessageError.
    """
    if len(raw) > MAX_MESSAGE_BYTES:
        raise ForgedMessageError("a message that is too long")
    message = _from_json(raw)
    if not isinstance(message, dict):
        raise ForgedMessageError("what is no message at all")
    check_wrapping(message.get("content-type"), message.get("content-encoding"), message.get("headers"))
    properties = message.get("properties")
    if not isinstance(properties, dict) or properties.get("body_encoding") != "base64":
        raise ForgedMessageError("a message with other properties than ours")
    return wrapped_for_redis(_from_base64(message.get("body")), queue, _priority(properties.get("priority")))


def wrapped_for_redis(body: bytes, queue: str, priority: int) -> bytes:
    """A message in Kombu's format for a Redis list."""
    message = {
        "body": base64.b64encode(body).decode("ascii"),
        "content-type": CONTENT_TYPE,
        "content-encoding": ENCODING,
        "headers": clean_headers(),
        "properties": {
            "body_encoding": "base64",
            "delivery_tag": secrets.token_hex(16),  # must be unique per message
            "delivery_info": {"exchange": "", "routing_key": queue},
            "delivery_mode": 2,
            "priority": priority,
        },
    }
    return json.dumps(message).encode("ascii")


def _priority(found: object) -> int:
    """The priority that the message gets if it is put back."""
    is_one = isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= names.MAX_PRIORITY
    return int(found) if is_one else names.PRIORITIES["redis"]["run"]  # type: ignore[call-overload]


def _from_json(text: bytes | str) -> Any:
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except (ValueError, RecursionError):
        raise ForgedMessageError("a message that is not JSON") from None


def _from_base64(text: object) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True) if isinstance(text, str) else b""
    except ValueError:
        raise ForgedMessageError("a message with a body that is not base64") from None
