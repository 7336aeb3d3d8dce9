"""Records as JSON: they become plain objects, and plain objects become records, checked by msgspec."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from numbers import Integral
from pathlib import PurePath
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
_met: set[type] = set()
_meeting = threading.Lock()


class FileFormat(msgspec.Struct, frozen=True):
    """What the first two entries of a file, or of a state, say: its format and the version of that, an integer."""

    name: str
    version: int

    def __str__(self) -> str:
        return f"{self.name} version {self.version}"

    def head(self) -> dict[str, str | int]:
        return {"format": self.name, "version": self.version}

    def is_of(self, data: object) -> bool:
        """True if plain data, or the attributes of an HDF5 file, say that they are of this format."""
        return not self.mismatch(data)

    def mismatch(self, data: object) -> str:
        """What was expected and what was found; "" if data is of this format."""
        if not isinstance(data, Mapping) or not isinstance(name := data.get("format"), str):
            return f"expected {self}, and it does not say its format"
        version: Any = data.get("version")
        known = None if isinstance(version, bool) or not isinstance(version, Integral) else int(version)
        if (name, known) != (self.name, self.version):
            return f"expected {self}, found {name} {repr(version)[:40] if known is None else known}"
        return ""

    def require(self, data: object) -> None:
        """Raise ValueError, which says what was found, if data is not of this format."""
        if wrong := self.mismatch(data):
            raise ValueError(wrong)


def to_plain(value: object) -> Any:
    """A record, or records inside lists and mappings, as objects that JSON knows.

    A class that is neither a Struct nor a dataclass says with `to_json` and `from_json` how it is written; a path is
    its text.
    """
    return msgspec.to_builtins(value, enc_hook=_own_json)


def _own_json(value: Any) -> Any:
    return str(value) if isinstance(value, PurePath) else value.to_json()


def _from_own_json(kind: Any, data: Any) -> Any:
    return kind(data) if issubclass(kind, PurePath) else kind.from_json(data)


def as_kind(data: object, kind: type[T]) -> T:
    """The record that plain objects make. Raises msgspec.ValidationError, which is a ValueError."""
    if kind not in _met:
        # two threads that let msgspec meet a type at the same moment end the process (SIGSEGV)
        with _meeting:
            with suppress(msgspec.ValidationError):
                msgspec.convert(None, kind)
            _met.add(kind)
    return msgspec.convert(data, kind, dec_hook=_from_own_json)


def indented(value: object, *, ensure_ascii: bool = True) -> str:
    """Plain objects as JSON that people can read: what `json.dumps` with `indent=1` writes, ten times as fast."""
    text = json.dumps(value, ensure_ascii=ensure_ascii)
    try:
        return msgspec.json.format(text, indent=1)
    except (msgspec.DecodeError, UnicodeEncodeError):  # NaN, infinity, names of files that are no text
        return json.dumps(value, indent=1, ensure_ascii=ensure_ascii)


def parsed(text: str | bytes) -> Any:
    """The value in a JSON text. Raises ValueError, and nothing else."""
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def parsed_with_names(text: str | bytes) -> Any:
    r"""The value in a JSON text of our own. Raises ValueError, and nothing else.

    In names of files that are no text, Python writes \udce9 for a byte. msgspec refuses that, and it is read here.
    """
    try:
        return parsed(text)
    except ValueError:
        mark = rb"\ud" if isinstance(text, bytes) else r"\ud"
        if mark not in text:  # type: ignore[operator]
            raise
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
