"""Checks of entries in Redis: anybody who may write there can have written them."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

log = logging.getLogger("merlin.worker")

MAX_TEXT = 4096
MAX_AT_ONCE = 100_000  # chunks that one worker runs at a time
MAX_WHOLE = 2**53
MAX_TIME_S = 1e11  # the year 5138
MAX_DAMAGED = 100  # of which is told
_NO_TEXT = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # what would steer a terminal, or is no UTF-8

Check = Callable[[Any], bool]


def is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and not _NO_TEXT.search(value)


def is_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


def is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_WHOLE


def is_time(value: object) -> bool:
    """Seconds since the epoch."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_TIME_S  # type: ignore[operator]  # not for NaN


def is_flag(value: object) -> bool:
    return isinstance(value, bool)


def parse_entry(text: str) -> Any:
    """The value in a JSON text. Raises ValueError, and nothing else."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def checked(data: object, shape: Mapping[str, Check]) -> dict[str, Any]:
    """The entry, if it has exactly these fields and each is what it should be. Raises ValueError."""
    if not isinstance(data, dict) or set(data) != set(shape):
        raise ValueError("it has other fields")
    for name, check in shape.items():
        if not check(data[name]):
            raise ValueError(f"its {name} cannot be")
    return data


WORKER: Mapping[str, Check] = {
    "name": is_text,
    "host": is_text,
    "pid": is_whole,
    "queues": is_texts,
    "concurrency": lambda value: is_whole(value) and 0 < value <= MAX_AT_ONCE,
    "started": is_time,
    "version": is_text,
    "is_stopping": is_flag,
    "running": lambda value: isinstance(value, list),
}
RUNNING: Mapping[str, Check] = {
    "study": is_text,
    "instance": is_text,
    "lo": is_whole,
    "hi": is_whole,
    "since": is_time,
}
STUDY: Mapping[str, Check] = {
    "study_id": is_text,
    "name": lambda value: isinstance(value, str),  # sealed: whatever a spec calls it
    "workspace": lambda value: isinstance(value, str),
    "plan": is_text,
    "queues": lambda value: isinstance(value, list) and all(isinstance(queue, str) for queue in value),
    "session": is_text,
    "published": is_time,
}


def is_command(data: Mapping[str, Any], to: str, now: float, ops: tuple[str, ...]) -> bool:
    """Whether a sealed command is for this worker, and still valid."""
    until, instances = data.get("until"), data.get("instances", [])
    is_current = isinstance(until, int | float) and math.isfinite(until) and until >= now
    return (
        data.get("to") == to
        and data.get("op") in ops
        and is_text(data.get("id"))
        and is_current
        and is_time(data.get("in_s", 0.0))
        and isinstance(data.get("study", ""), str)
        and isinstance(instances, list)
        and all(isinstance(instance, str) for instance in instances)
    )


class Damage:
    """Entries that cannot be used: each costs itself, is told once, and shown by `merlin doctor`."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}  # where -> why

    def note(self, where: str, why: object) -> None:
        if where not in self.found and len(self.found) < MAX_DAMAGED:
            self.found[where] = str(why)
            log.error("left out: %s in Redis: %s", ascii(where[:200]), ascii(str(why)[:200]))
