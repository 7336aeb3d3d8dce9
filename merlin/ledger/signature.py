"""Make the last lines of logs comparable, by removing what differs between two samples of one failure."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_SIGNATURE_CHARS = 200

_RULES = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),  # terminal colours
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"(?<![\w/.~<])(?:~|\.{1,2})?/[^\s:'\",;()\[\]{}<>]+"), "<path>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"), "<hex>"),
    (re.compile(r"[-+]?\b\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"), "<n>"),
    (re.compile(r"\d+"), "<n>"),
    (re.compile(r"\s+"), " "),
)


def last_line(tail: str) -> str:
    """The last line of `tail` that is not blank."""
    return tail.rstrip().rpartition("\n")[2].strip()


@lru_cache(maxsize=4096)
def normalise(line: str) -> str:
    """Collapse digits, hexadecimal numbers, paths and white space.

    >>> normalise("/scratch/a/17/run.py:12: bad pressure 3.5e-2 at 0x7ffe")
    '<path>:<n>: bad pressure <n> at <hex>'
    """
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line.strip()[:MAX_SIGNATURE_CHARS]


def signature_of(tail: str) -> str:
    return normalise(last_line(tail)[-1000:])
