"""Lines of text files with quotes in them, as RFC 4180 has them: a field in quotes may hold the delimiter, a
``#``, line ends, and quotes written twice. Quotes inside of a field that does not begin with one mean nothing.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

_IN_QUOTES = r'"(?P<quoted>[^"]*(?:""[^"]*)*)"'
_OPEN = r'(?P<open>"[^"]*(?:""[^"]*)*\Z)'
_CSV_FIELD = re.compile(rf"[ \t]*(?:{_IN_QUOTES}\s*(?=[,#]|\Z)|{_OPEN})|(?P<plain>[^,#]*)")
_BLANK_FIELD = re.compile(rf"\s*(?:{_IN_QUOTES}(?=[\s#]|\Z)|{_OPEN}|(?P<plain>[^\s#]+))")
_BLOCK_LINES = 1 << 16

Field = tuple[int, str]  # where it begins in its text, and its value


class OpenQuoteError(ValueError):
    """A quote is not closed; `line` counts from 0."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line}")
        self.line = line


def quoted_fields(text: str, delimiter: str | None) -> list[Field]:
    """The fields of a row up to a comment; without a delimiter they are separated by blanks."""
    return [
        (match.start("quoted") - 1, match["quoted"].replace('""', '"'))
        if match["quoted"] is not None
        else (match.start("plain"), match["plain"] or match["open"] or "")
        for match in _matches(text.rstrip("\r"), delimiter)
    ]


def _matches(text: str, delimiter: str | None) -> Iterator[re.Match[str]]:
    at = 0
    if delimiter is None:
        while match := _BLANK_FIELD.match(text, at):
            yield match
            at = match.end()
        return
    while match := _CSV_FIELD.match(text, at):
        yield match
        at = match.end() + 1
        if text[match.end() : at] != delimiter:
            return


def join_quoted_lines(
    data: mmap.mmap,
    starts: NDArray[np.int64],
    stops: NDArray[np.int64],
    keep: NDArray[np.bool_],
    delimiter: str | None,
) -> None:
    """Make one of the lines that a field in quotes spans: changes `stops` and `keep`.

    Raises:
        OpenQuoteError: the last quote of the file is not closed.
    """
    odd = _lines_with_odd_quotes(data, starts, stops)
    place = 0
    while place < len(odd):
        first = last = int(odd[place])
        place += 1
        while keep[first] and _is_open(data[starts[first] : stops[last]], delimiter):
            if place == len(odd):
                raise OpenQuoteError(first)
            last = int(odd[place])
            place += 1
        stops[first] = stops[last]
        keep[first + 1 : last + 1] = False


def _lines_with_odd_quotes(
    data: mmap.mmap, starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> NDArray[np.int64]:
    """No other line can begin or end a field of several lines."""
    found = []
    for lo in range(0, len(starts), _BLOCK_LINES):
        edges = np.append(starts[lo : lo + _BLOCK_LINES], stops[lo : lo + _BLOCK_LINES][-1])
        block = np.frombuffer(data[edges[0] : edges[-1]], dtype=np.uint8)
        quotes = np.flatnonzero(block == ord('"')) + edges[0]
        found.append(np.flatnonzero(np.diff(np.searchsorted(quotes, edges)) & 1) + lo)
    return np.concatenate(found)


def _is_open(raw: bytes, delimiter: str | None) -> bool:
    """Whether the last field goes on in the next line."""
    text = raw.decode("utf-8", "surrogateescape").rstrip("\r")
    return any(match["open"] is not None for match in _matches(text, delimiter))
