"""Make the last lines of logs comparable, by removing what differs between two samples of one failure."""

from __future__ import annotations

import re
from functools import lru_cache

MAX_SIGNATURE_CHARS = 200
_LOOK_BACK_LINES = 20  # for a line that says something

_RULES = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),  # terminal colours
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?)?"), "<time>"),
    (re.compile(r"\b\d{1,2}:\d\d:\d\d(?:[.,]\d+)?\b"), "<time>"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<hex>"),
    (re.compile(r"(?<![\w/.~<])(?:~|\.{1,2})?/[^\s:'\",;()\[\]{}<>]+"), "<path>"),
    (re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{8,}\b"), "<hex>"),
    (re.compile(r"[-+]?\b\d+(?:\.\d*)?(?:[eE][-+]?\d+)?"), "<n>"),
    (re.compile(r"\d+"), "<n>"),
    (re.compile(r"\s+"), " "),
)
# what launchers and shells add at the end, whatever has happened; and lines that only separate
_SAYS_NOTHING = re.compile(
    r"(?:srun|slurmstepd|mpirun|mpiexec|prterun|prun|orterun|jsrun|flux(?:-job)?|aprun|lrun)(?:\[\d+\])?: .*"
    r"|\*\*\* .* \*\*\*|Aborted(?: \(core dumped\))?|Killed|Terminated|\+ exit \d+|exit(?: code)?:? \d+"
    r"|[^\w<>]*|log: (?:extensions/\d+/)?merlin_info/logs/\S+\.err"  # the end of a report on a crash
)


def last_line(tail: str) -> str:
    """The last line of `tail` that says something about the failure; the last that is not blank, if none does."""
    lines = [line.strip() for line in tail.rstrip().split("\n")[-_LOOK_BACK_LINES:]]
    telling = (line for line in reversed(lines) if not _SAYS_NOTHING.fullmatch(line))
    return next(telling, lines[-1])


@lru_cache(maxsize=4096)
def normalise(line: str) -> str:
    """Collapse times, identifiers, digits, hexadecimal numbers, paths and white space.

    >>> normalise("/scratch/a/17/run.py:12: bad pressure 3.5e-2 at 0x7ffe")
    '<path>:<n>: bad pressure <n> at <hex>'
    """
    for pattern, replacement in _RULES:
        line = pattern.sub(replacement, line)
    return line.strip()[:MAX_SIGNATURE_CHARS]


def signature_of(tail: str) -> str:
    return normalise(last_line(tail)[-1000:])
