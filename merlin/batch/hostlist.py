"""Host names as schedulers list them: ``node[1-3,07],login2``. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

MOST_HOSTS = 100_000  # a longer list is damaged
_PART = re.compile(r"([\w.-]+|\[[\d,-]*\])+", re.ASCII)
_PIECE = re.compile(r"\[([^\[\]]*)\]|([^\[\]]+)")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def expand_hosts(text: str) -> tuple[str, ...]:
    """Every host of a list, in its order, each once. Raises ValueError."""
    hosts: dict[str, None] = {}
    for part in _parts(text.strip()):
        for host in _expand(part):
            hosts[host] = None
            if len(hosts) > MOST_HOSTS:
                raise ValueError(f"a list of more than {MOST_HOSTS:,} hosts: {text[:60]!r}")
    return tuple(hosts)


def known_hosts(text: str) -> tuple[str, ...]:
    """`expand_hosts` of what a scheduler says; none for "(null)", "None assigned": the rest is still of use."""
    try:
        return expand_hosts(text)
    except ValueError:
        return ()


def _parts(text: str) -> Iterator[str]:
    at = 0
    while at < len(text):
        match = _PART.match(text, at)
        if match is None or text[match.end() : match.end() + 1] not in ("", ","):
            raise ValueError(f"not a list of hosts: {text[:60]!r}")
        yield match[0]
        at = match.end() + 1


def _expand(part: str) -> Iterator[str]:
    """``rack[1-2]n[01-12]``: every combination, the last number fastest."""
    match = _PIECE.match(part)
    if match is None:
        yield ""
        return
    for begin in [match[2]] if match[1] is None else _numbers(match[1]):
        for rest in _expand(part[match.end() :]):
            yield begin + rest


def _numbers(text: str) -> Iterator[str]:
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or len(part) > 40:
            raise ValueError(f"not a range of hosts: {text[:60]!r}")
        first, last = match[1], match[2] or match[1]
        if int(last) - int(first) >= MOST_HOSTS or int(last) < int(first):
            raise ValueError(f"not a range of hosts: {text[:60]!r}")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
