"""How two values of a plan differ, in words. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from merlin.plan import change_words

MAX_LINES = 8  # of a difference that are shown


def anywhere(value: Any, spec_root: str) -> Any:
    if isinstance(value, str):
        return value.replace(spec_root, "$(SPECROOT)") if spec_root not in ("", "/") else value
    if isinstance(value, Mapping):
        return {key: anywhere(item, spec_root) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [anywhere(item, spec_root) for item in value]
    return value


def changed(old: Any, new: Any) -> str:
    """ "a, now b"; of texts of several lines, the lines that differ."""
    if not (isinstance(old, str) and isinstance(new, str) and "\n" in old + new):
        return change_words.changed(old, new)
    diff = difflib.ndiff(old.splitlines(), new.splitlines())
    lines = [f"\n    {line}" for line in diff if line[:1] in "-+"]
    more = len(lines) - MAX_LINES
    return "".join(lines[:MAX_LINES]) + (f"\n    and {more} more lines" if more > 0 else "")
