"""How two definitions differ, in the words of the spec. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from merlin.base.text import count

MAX_REASONS = 3  # that are shown of a step
_WIDTH = 40  # characters of a value that are shown
_BEFORE = 10  # of these, how many stand before the first that differs


def changed(old: Any, new: Any) -> str:
    """What a value was and is: "a, now b"; of texts of several lines the first that differs."""
    if isinstance(old, str) and isinstance(new, str) and old.strip() == new.strip():
        return "spaces at the ends"
    if isinstance(old, str) and isinstance(new, str) and "\n" in old.strip() + new.strip():
        return _changed_lines(old.strip().splitlines(), new.strip().splitlines())
    return _pair(_in_words(old), _in_words(new))


def changes(path: str, old: Any, new: Any, say: Callable[[Any, Any], str] = changed) -> Iterator[str]:
    """A phrase for each value that differs, which is named by its path: "resources.nodes: 1, now 2".

    `say` puts a value that differs into words.
    """
    pairs = _parts(old, new)
    if not pairs:
        yield f"{path}: {say(old, new)}"
    for name, was, now in pairs:
        if was != now:
            yield from changes(f"{path}.{name}", was, now, say)


def some_are(ids: Iterable[str], what: str) -> str:
    """ "a/P.4 is new", "a/P.4 and 2 more are new"; "" if there are none."""
    names = list(dict.fromkeys(ids))
    if len(names) < 2:
        return f"{names[0]} is {what}" if names else ""
    return f"{names[0]} and {len(names) - 1:,} more are {what}"


def first_reasons(reasons: Sequence[str]) -> str:
    """ "a; b; c; and 2 more": why a step has changed, in short; "" if there are none."""
    more = len(reasons) - MAX_REASONS
    return "; ".join(reasons[:MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _parts(old: Any, new: Any) -> list[tuple[str, Any, Any]]:
    """The parts of two mappings, or of two lists of such of the same length: name, old and new value."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [(str(key), old.get(key), new.get(key)) for key in dict.fromkeys((*old, *new))]
    if _is_list(old) and _is_list(new) and len(old) == len(new) and any(map(_is_nested, (*old, *new))):
        return [(str(i), was, now) for i, (was, now) in enumerate(zip(old, new, strict=True))]
    return []


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or _is_list(value)


def _changed_lines(old: list[str], new: list[str]) -> str:
    places = [op for op in SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if op[0] != "equal"]
    num = sum(max(op[2] - op[1], op[4] - op[3]) for op in places)
    more = f", and {count(num - 1, 'more line')}" if num > 1 else ""
    kind, i, _, j, _ = places[0]
    if kind == "insert":
        return f"line {j + 1} is new: {_cut(new[j].strip(), 0)}{more}"
    if kind == "delete":
        return f"line {i + 1} is gone: {_cut(old[i].strip(), 0)}{more}"
    return f"line {j + 1}: {_pair(old[i].strip(), new[j].strip())}{more}"


def _pair(old: str, new: str) -> str:
    start = 0
    if max(len(old), len(new)) > _WIDTH:
        both = zip(old, new, strict=False)
        same = next((i for i, (a, b) in enumerate(both) if a != b), min(len(old), len(new)))
        start = max(0, same - _BEFORE)
        start = old.find(" ", start, same) + 1 or start
    return f"{_cut(old, start)}, now {_cut(new, start)}"


def _cut(text: str, start: int) -> str:
    """The part of a long text that begins with the character `start`."""
    part = text[start : start + _WIDTH].strip()
    return ("…" if start else "") + part + ("…" if start + _WIDTH < len(text) else "")


def _in_words(value: Any) -> str:
    if value is None or value == "" or (_is_nested(value) and not value):
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_in_words(item)}" for key, item in value.items())
    if _is_list(value):
        return ", ".join(map(_in_words, value))
    return " ".join(str(value).split())
