"""Messages that only holders of the user's key can write.

An envelope is ``{"body": "<JSON text>", "mac": "<hex HMAC-SHA256(key, body)>"}``. The code covers the text
itself, so nothing is parsed before it is known to be ours.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from merlin.base.records import parsed_with_names
from merlin.errors import ForgedMessageError

MAX_BODY_BYTES = 256 * 1024  # messages carry ids; anything near this is not ours
_MAC_CHARS = 64
_FIELDS = {"body", "mac"}


def seal(body: Mapping[str, Any], key: bytes, *, max_bytes: int = MAX_BODY_BYTES) -> dict[str, str]:
    """The envelope of a message.

    Raises ValueError for a body that is no plain JSON object or is longer than that.
    """
    text = json.dumps(dict(body), sort_keys=True, separators=(",", ":"), allow_nan=False)
    if len(text) > max_bytes:  # ASCII: a character is a byte
        raise ValueError(f"a message of {len(text)} bytes; at most {max_bytes} are allowed")
    return {"body": text, "mac": _mac(text.encode("ascii"), key)}


def unseal(envelope: object, key: bytes, *, max_bytes: int = MAX_BODY_BYTES) -> dict[str, Any]:
    """The body of a message. Raises ForgedMessageError for anything that `seal` did not write with this key."""
    if not isinstance(envelope, Mapping) or set(envelope) != _FIELDS:
        raise ForgedMessageError("a message without a seal")
    text, mac = envelope["body"], envelope["mac"]
    if not isinstance(text, str) or not isinstance(mac, str) or len(mac) != _MAC_CHARS:
        raise ForgedMessageError("a message with a malformed seal")
    if len(text) > max_bytes:
        raise ForgedMessageError(f"a message of {len(text)} characters; at most {max_bytes} are allowed")
    if not (text.isascii() and mac.isascii()):
        raise ForgedMessageError("a message with characters that no seal of ours has")
    if not hmac.compare_digest(_mac(text.encode("ascii"), key), mac):
        raise ForgedMessageError(
            "a message whose seal does not fit: it was forged, altered, or uses another key"
        )
    try:
        body = parsed_with_names(text)
    except ValueError:
        raise ForgedMessageError("a sealed message that is not JSON") from None
    if not isinstance(body, dict):
        raise ForgedMessageError("a sealed message that is not a JSON object")
    return body


def _mac(text: bytes, key: bytes) -> str:
    return hmac.new(key, text, hashlib.sha256).hexdigest()
