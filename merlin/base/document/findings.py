"""Collecting diagnostics: places, "did you mean", and the order in which they are shown."""

from __future__ import annotations

import difflib
from bisect import bisect_right
from collections.abc import Iterable

from msgspec import Struct, field

from merlin.errors import Diagnostic

Place = tuple[int, int]  # line and column from 1; (0, 0) is unknown
NOWHERE: Place = (0, 0)


class SourceText:
    """The text of a spec, and where its characters are."""

    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.text = text
        self._starts = [0]
        for line in text.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def place(self, offset: int) -> Place:
        """Line and column of a character."""
        line = bisect_right(self._starts, offset)
        line = min(line, max(len(self._starts) - 1, 1))
        return line, offset - self._starts[line - 1] + 1

    def line(self, number: int) -> str:
        """The text of a line, without its end."""
        lines = self.text.splitlines()
        return lines[number - 1] if 0 < number <= len(lines) else ""


class Findings(Struct):
    """Everything found so far in one spec."""

    file: str
    items: list[Diagnostic] = field(default_factory=list)

    def error(self, place: Place, message: str, *, code: str, text: str = "", hint: str = "") -> None:
        self._add(Diagnostic(self.file, *place, message, text, hint, "error", code))

    def warning(self, place: Place, message: str, *, code: str, text: str = "", hint: str = "") -> None:
        self._add(Diagnostic(self.file, *place, message, text, hint, "warning", code))

    def command_line(self, message: str, *, code: str, text: str = "", hint: str = "") -> None:
        """An error in what the command line said about the spec."""
        self._add(Diagnostic("command line", 0, 0, message, text, hint, "error", code))

    def _add(self, item: Diagnostic) -> None:
        if item not in self.items:
            self.items.append(item)

    def sorted(self) -> list[Diagnostic]:
        """Errors before warnings, each by place."""
        return sorted(self.items, key=lambda d: (d.severity != "error", d.line, d.col))

    @property
    def failed(self) -> bool:
        return any(d.severity == "error" for d in self.items)


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """`did you mean 'x'?`, or nothing if no known word is close."""
    choices = list(known)
    found = difflib.get_close_matches(word, choices, n=1, cutoff=cutoff)
    if not found:
        by_lower = {choice.lower(): choice for choice in choices}
        lower = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=cutoff)
        found = [by_lower[each] for each in lower]
    return f"did you mean {found[0]!r}?" if found else ""


def allowed(word: str, known: Iterable[str], what: str = "allowed here") -> str:
    """The closest known word if there is one, and what is allowed."""
    names = sorted(known)
    suggestion = did_you_mean(word, names)
    listing = f"{what}: {', '.join(names[:40])}" if names else ""
    return " ".join(part for part in (suggestion, listing) if part)


def is_one_edit_away(word: str, known: str) -> bool:
    """Return whether the words differ in one letter, which is another one, added or missing."""
    if abs(len(word) - len(known)) > 1 or word == known:
        return False
    same = next(
        (i for i, (a, b) in enumerate(zip(word, known, strict=False)) if a != b), min(len(word), len(known))
    )
    a, b = word[same:], known[same:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:]
