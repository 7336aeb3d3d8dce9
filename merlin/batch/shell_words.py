"""Words of launch lines and job scripts: what users wrote, checked and quoted. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from merlin.batch.contract import Scalar
from merlin.batch.walltime import walltime_seconds

_NUMBER = re.compile(r"\d+|\$\w+|\$\{\w+\}|\$\(\w+\)")  # or what stands for one: a variable, a token


def one_line(text: str, what: str) -> str:
    """The text on one line: line breaks are spaces. Raises ValueError for control characters."""
    joined = " ".join(line.strip() for line in text.splitlines()).strip().replace("\t", " ")
    if not joined.isprintable():
        raise ValueError(f"{what} has a control character in it: {joined[:60]!r}")
    return joined


def number_word(value: Scalar, what: str) -> str:
    """A whole number, or a shell variable or token that stands for one. Raises ValueError."""
    text = str(value).strip()
    if isinstance(value, bool) or not _NUMBER.fullmatch(text):
        raise ValueError(f"{what} is not a number: {text[:60]!r}")
    return text


def quoted_word(value: Scalar, what: str) -> str:
    """The value as one word of a shell's line; variables in it stay as they are. Raises ValueError."""
    text = one_line(str(value), what)
    return text if _NUMBER.fullmatch(text) else shlex.quote(text)


def walltime_word(value: Scalar, as_written: Callable[[float], str]) -> str:
    """A walltime as a scheduler writes it; variables and tokens as they are, "" for no limit. Raises ValueError."""
    text = one_line(str(value), "walltime")
    if _NUMBER.fullmatch(text) and text.startswith("$"):
        return text
    seconds = walltime_seconds(text)
    return "" if seconds is None else as_written(seconds)


def is_on(value: Scalar) -> bool:
    """True if a flag of a step is on: true, or a word that says so."""
    return str(value).strip().lower() in ("true", "yes", "on", "1")


def joined_words(*words: str) -> str:
    """The words that are not empty, on one line."""
    return " ".join(word for word in words if word)
