"""What goes out: values as JSON, and errors as JSON with the status that fits them."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from merlin.dashboard.lanes import BusyError, SlowError
from merlin.errors import (
    LoaderError,
    MerlinError,
    NotADataSetError,
    SamplesError,
    StudyGoneError,
    UsageError,
    WorkspaceError,
)

LOG = logging.getLogger(__name__)

# the most special error first; any other error of ours says that something cannot be read
_STATUSES: tuple[tuple[type[MerlinError], int], ...] = (
    (SamplesError, 422),
    (UsageError, 400),
    (WorkspaceError, 404),
    (NotADataSetError, 404),
    (StudyGoneError, 404),
    (BusyError, 503),
    (SlowError, 504),
    (LoaderError, 503),
)
_UNREADABLE = 422


class JsonAnswer(Response):
    """JSON that was written before."""

    media_type = "application/json"

    def render(self, content: bytes) -> bytes:
        return content


def to_json(value: object) -> bytes:
    """The value as compact JSON without line ends; numbers that JSON does not have become null."""
    try:
        return msgspec.json.encode(value, enc_hook=_other)
    except UnicodeEncodeError:  # for example the name of a file that is no UTF-8
        return msgspec.json.encode(_readable(msgspec.to_builtins(value, enc_hook=_other, str_keys=True)))


def _other(value: Any) -> Any:
    """NumPy's scalars and arrays, paths, and whatever else has a text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _readable(value: Any) -> Any:
    """The value with a question mark for each character that UTF-8 does not have."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_readable(key): _readable(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_readable(entry) for entry in value]
    return value


def answer(value: object, status: int = 200) -> Response:
    return JsonAnswer(to_json(value), status)


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """An error as every program gets it."""
    return JsonAnswer(to_json({"error": message}), status, headers=headers)


def refusal_for(error: Exception) -> Response:
    """The answer to a request that ended in an error; one that nobody foresaw is logged with its traceback."""
    if isinstance(error, HTTPException):
        return refusal(error.status_code, error.detail, dict(error.headers or {}))
    if isinstance(error, MerlinError):
        status = next((code for kind, code in _STATUSES if isinstance(error, kind)), _UNREADABLE)
        return refusal(status, str(error))
    if isinstance(error, OSError) and error.strerror:
        return refusal(_UNREADABLE, f"{error.strerror}: {error.filename or ''}".rstrip(": "))
    LOG.error("a request failed", exc_info=error)
    return refusal(
        500, f"internal error: {type(error).__name__}; the terminal of merlin dashboard shows more"
    )
