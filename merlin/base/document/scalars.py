"""YAML scalars as text that remembers its YAML 1.1 type, and how numbers are read from them.

A spec keeps every scalar as written (`walltime: 1:30:00`, `cmd: true`); a field that wants a number
asks for one.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

import yaml

Scalar = str | int | float | bool

_INTEGER = re.compile(r"[+-]?\d+")
_EXPONENT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)[eE][+-]?\d+")
_CLOCK = re.compile(r"(?:(?:(\d+)[-:])?(\d+):)?(\d+):(\d+(?:\.\d*)?)")
_SPAN = re.compile(r"(\d+(?:\.\d*)?)\s*(ms|s|m|min|h|d)")
_SPAN_UNITS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}


class Plain(str):
    """An unquoted scalar whose YAML type is not text: equal to its text, with the typed value beside it."""

    __slots__ = ("typed",)
    typed: Scalar

    @property
    def keeps_text(self) -> bool:
        """Whether the typed value is written like the text; 007 and yes become 7 and true."""
        text = str(self.typed)
        return self == (text.lower() if isinstance(self.typed, bool) else text)


class Problem(ValueError):
    """What is wrong with a value, and what would be right; `code` is the diagnostic's."""

    def __init__(self, message: str, hint: str = "", code: str = "value") -> None:
        super().__init__(message)
        self.hint = hint
        self.code = code


@cache
def _yaml_types() -> tuple[yaml.resolver.Resolver, yaml.constructor.SafeConstructor]:
    return yaml.resolver.Resolver(), yaml.constructor.SafeConstructor()


def plain_scalar(text: str) -> str | None:
    """Type an unquoted scalar as YAML 1.1 does; null is None. Clock times stay text."""
    resolver, constructor = _yaml_types()
    tag: str = resolver.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    if tag == "tag:yaml.org,2002:null":
        return None
    kind = tag.rpartition(":")[2]
    if kind not in ("int", "float", "bool") or ":" in text:
        return text
    node = yaml.ScalarNode(tag, text)
    scalar = Plain(text)
    construct = getattr(constructor, f"construct_yaml_{kind}")
    try:
        scalar.typed = construct(node)
    except ValueError:  # "0b" and the like match YAML's pattern but are no number
        return text
    return scalar


def missed_number(text: str) -> float | None:
    """The number that a reader sees in an unquoted scalar, and YAML 1.1 does not: 1e-3 is text, 1.0e-3 is not."""
    is_missed = _EXPONENT.fullmatch(text) and not isinstance(plain_scalar(text), Plain)
    return float(text) if is_missed and math.isfinite(float(text)) else None


def yaml_number(number: float) -> str:
    """A number as YAML 1.1 knows it for one."""
    text = str(number)
    return text if "." in text else text.replace("e", ".0e")


def typed(value: Any) -> Any:
    """The value with every scalar in it turned into its YAML type."""
    if isinstance(value, Plain):
        return value.typed
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return value


def shown(value: Any) -> str:
    """The offending text for a message, cut to one line."""
    text = str(value).strip().splitlines()
    line = text[0] if text else ""
    return repr(line if len(line) <= 60 and len(text) < 2 else line[:57] + "…")


def is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float | bool)


def to_int(value: Any, least: int | None = None, most: int | None = None) -> int:
    """Read a whole number."""
    value = typed(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _not_a("a whole number", value, least)
    if least is not None and value < least:
        raise Problem(f"must be at least {least}, not {value}")
    if most is not None and value > most:
        raise Problem(f"must be at most {most}, not {value}")
    return value


def to_float(value: Any, least: float | None = None) -> float:
    """Read a finite number; `1e-3` is one."""
    value = typed(value)
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _not_a("a number", value, least) from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _not_a("a number", value, least)
    if not math.isfinite(value):
        raise Problem("must be finite")
    if least is not None and value < least:
        raise Problem(f"must be at least {least:g}, not {value:g}")
    return float(value)


def to_amount(value: Any) -> int | float:
    """Read a number of devices: a whole one, or below 1 the share of one device."""
    number = to_float(value, 0.0)
    if number > 1 and not number.is_integer():
        raise Problem(f"must be whole, or below 1, not {number:g}", "a share is of one device, e.g. 0.5")
    return number if 0 < number < 1 else int(number)


def to_bool(value: Any) -> bool:
    """Read true or false, in all of YAML 1.1's spellings, quoted or not."""
    value = typed(value)
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower() if is_scalar(value) else ""
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise Problem(f"{shown(value)} is neither true nor false", "write true or false")


def to_seconds(value: Any) -> float:
    """Read a time span: seconds, `HH:MM:SS`, `MM:SS`, or a number with a unit such as `90s`, `5m`, `2h`."""
    text = str(typed(value)).strip() if is_scalar(value) else ""
    if match := _CLOCK.fullmatch(text):
        days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
        return days * 86400 + hours * 3600 + minutes * 60 + seconds
    if match := _SPAN.fullmatch(text):
        return float(match[1]) * _SPAN_UNITS[match[2]]
    try:
        return to_float(value, 0.0)
    except Problem as problem:
        if not problem.hint:
            raise
        raise Problem(
            f"{shown(value)} is not a time span", 'write seconds (90), "HH:MM:SS", or a unit (90s, 5m, 2h)'
        ) from None


def to_failure_limit(value: Any) -> float | None:
    """Read `5%` as a fraction and `12` as a count; `100%` means no limit."""
    text = str(typed(value)).strip() if is_scalar(value) else ""
    if not text.endswith("%"):
        try:
            return to_float(value, 0.0)
        except Problem as problem:
            raise Problem(str(problem), 'write a count (12) or a share of the tasks ("5%")') from None
    percent = to_float(text[:-1].strip(), 0.0)
    if percent > 100:
        raise Problem(f"{text} is more than all tasks", 'write a count (12) or a share of the tasks ("5%")')
    return None if percent == 100 else percent / 100


def _not_a(what: str, value: Any, least: float | None) -> Problem:
    if isinstance(value, str) and "$(" in value:
        return Problem(
            f"{shown(value)} has no value yet when this number is needed",
            "use a variable of env.variables here",
        )
    if not is_scalar(value):
        return Problem(f"must be {what}, not a list or a mapping")
    suffix = "" if least is None else f", at least {least:g}"
    return Problem(f"{shown(value)} is not {what}", f"write {what}{suffix}")
