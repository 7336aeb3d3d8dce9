"""Fields of delimited text, as in RFC 4180.

A field in quotes may hold the delimiter, a ``#``, line ends, and quotes written twice. Quotes inside a field that does
not begin with one mean nothing.
"""

from __future__ import annotations

import functools
import mmap
import re
from collections.abc import Iterator

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

_IN_QUOTES = r'"(?P<quoted>[^"]*(?:""[^"]*)*)"'
_OPEN = r'(?P<open>"[^"]*(?:""[^"]*)*\Z)'
_BLOCK_LINES = 1 << 16

PlacedValue = tuple[int, str]  # where it begins in its row's text, and the value


class OpenQuoteError(ValueError):
    """A quote is not closed; `line` counts from 1."""

    def __init__(self, line: int) -> None:
        super().__init__("a quote is not closed")
        self.line = line


class Dialect(Struct, frozen=True):
    """How the rows of a text file are divided into values."""

    delimiter: str | None  # None: any blanks
    has_comments: bool = True  # a "#" outside of quotes ends a row

    def values(self, text: str) -> list[str]:
        """The values of a row."""
        if '"' in text:
            return [value for _, value in self.placed_values(text)]
        if self.has_comments and "#" in text:
            text = text[: text.index("#")]
        return text.rstrip("\r").split(self.delimiter)

    def placed_values(self, text: str) -> list[PlacedValue]:
        """The values of a row, each with its place."""
        return [
            (match.start("quoted") - 1, match["quoted"].replace('""', '"'))
            if match["quoted"] is not None
            else (match.start("plain"), match["plain"] or match["open"] or "")
            for match in self._matches(text.rstrip("\r"))
        ]

    def is_open(self, raw: bytes) -> bool:
        """True if the last field of a line goes on in the next one."""
        text = raw.decode("utf-8", "surrogateescape").rstrip("\r")
        return any(match["open"] is not None for match in self._matches(text))

    def _matches(self, text: str) -> Iterator[re.Match[str]]:
        pattern, at = _pattern(self.delimiter, self.has_comments), 0
        while match := pattern.match(text, at):
            yield match
            at = match.end()
            if self.delimiter is not None:
                if text[at : at + 1] != self.delimiter:
                    return
                at += 1

    def written(self, value: str) -> str:
        """The value as it has to stand in a file, in quotes where it needs them."""
        is_special = any(letter in '"#\r\n' or letter == self.delimiter for letter in value)
        if not value.strip() or is_special or (self.delimiter is None and value != "".join(value.split())):
            return '"' + value.replace('"', '""') + '"'
        return value


@functools.cache
def _pattern(delimiter: str | None, has_comments: bool) -> re.Pattern[str]:
    comment = "#" if has_comments else ""
    if delimiter is None:
        return re.compile(rf"\s*(?:{_IN_QUOTES}(?=[\s{comment}]|\Z)|{_OPEN}|(?P<plain>[^\s{comment}]+))")
    blanks, ends = " \t".replace(delimiter, ""), f"{delimiter}{comment}"
    return re.compile(rf"[{blanks}]*(?:{_IN_QUOTES}\s*(?=[{ends}]|\Z)|{_OPEN})|(?P<plain>[^{ends}]*)")


def join_quoted_lines(
    data: mmap.mmap,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    keep: NDArray[np.bool_],
    dialect: Dialect,
) -> None:
    """Join the lines that a field in quotes spans into one row, by changing `stops` and `keep`.

    Raises:
        OpenQuoteError: the last quote of the file is not closed.
    """
    odd = _lines_with_odd_quotes(data, starts, stops)
    place = 0
    while place < len(odd):
        first = last = int(odd[place])
        place += 1
        while keep[first] and dialect.is_open(data[starts[first] : stops[last]]):
            if place == len(odd):
                raise OpenQuoteError(first + 1)
            last = int(odd[place])
            place += 1
        stops[first] = stops[last]
        keep[first + 1 : last + 1] = False


def _lines_with_odd_quotes(
    data: mmap.mmap, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.int64]:
    """The lines with an odd number of quotes: only these can begin or end a field of several lines."""
    found = []
    for lo in range(0, len(starts), _BLOCK_LINES):
        edges = np.append(starts[lo : lo + _BLOCK_LINES], stops[lo : lo + _BLOCK_LINES][-1])
        block = np.frombuffer(data[edges[0] : edges[-1]], dtype=np.uint8)
        quotes = np.flatnonzero(block == ord('"')) + edges[0]
        found.append(np.flatnonzero(np.diff(np.searchsorted(quotes, edges)) & 1) + lo)
    return np.concatenate(found)
