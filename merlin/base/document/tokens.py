"""`$(NAME)` tokens in text: finding them, filling them in, telling them from the shell's `$(command)`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

# One word in "$(" and ")": no blanks, quotes or operators, so "$(ls | wc -l)" and "$((1+2))" do not match.
_NOT_IN_NAMES = r"\s()$`'\"|;&<>{}"
TOKEN = re.compile(rf"\$\(([^{_NOT_IN_NAMES}]+)\)")
_NESTED = re.compile(rf"\$\([^{_NOT_IN_NAMES}]*\$\(")
_INCOMPLETE = re.compile(rf"\$\(([^{_NOT_IN_NAMES}]*(?:{TOKEN.pattern}[^{_NOT_IN_NAMES}]*)+)\)")
_BREAKS = re.compile(rf"(\$\(|[{_NOT_IN_NAMES}])")

_CAPITALS = re.compile(r"[A-Z_][A-Z0-9_]*")
SUFFIXES = (".workspace", ".label", ".name")


class Token(Struct, frozen=True):
    """`$(name)` at text[start:end]."""

    name: str
    start: int
    end: int


def find_tokens(text: str) -> list[Token]:
    """Every token of the text in order, shell words such as `$(date)` included."""
    if "$(" not in text:
        return []
    return [Token(m[1], m.start(), m.end()) for m in TOKEN.finditer(text)]


def find_incomplete(text: str) -> list[Token]:
    """Every token with tokens in its name, which begin none themselves: `$(A_$(B))`."""
    return [Token(m[1], m.start(), m.end()) for m in _INCOMPLETE.finditer(text)]


def substitute(text: str, mapping: Mapping[str, str]) -> str:
    """Fill in the tokens that the mapping knows, in one pass; leave all others as they are.

    Of `$($(MODEL)_steps)` the inner token is filled in first, and then the one with the name that this makes.
    """
    if "$(" not in text:
        return text
    if _NESTED.search(text):
        return "".join(filled for _, filled in _inside_out(text, mapping))
    return TOKEN.sub(lambda m: mapping.get(m[1], m[0]), text)


def substitute_in_names(text: str, mapping: Mapping[str, str]) -> str:
    """The text with complete names: `$($(MODEL)_steps)` becomes `$(small_steps)`, which stays."""
    if not _NESTED.search(text):
        return text
    return "".join(named for named, _ in _inside_out(text, mapping))


def _inside_out(text: str, mapping: Mapping[str, str]) -> list[tuple[str, str]]:
    """The parts of the text: each as it is when the tokens inside of it are filled in, and with itself filled in."""
    parts: list[list[tuple[str, str]]] = [[]]  # of the text, and of every "$(" that is open
    for piece in _BREAKS.split(text):
        if piece == "$(":
            parts.append([])
        elif piece == ")" and len(parts) > 1:
            named = f"$({''.join(filled for _, filled in parts.pop())})"
            token = TOKEN.fullmatch(named)
            parts[-1].append((named, mapping.get(token[1], named) if token else named))
        else:
            if _BREAKS.fullmatch(piece):  # then what is open is no token
                for inner in parts[1:]:
                    parts[0] += [("$(", "$("), *inner]
                del parts[1:]
            parts[-1].append((piece, piece))
    for inner in parts[1:]:
        parts[0] += [("$(", "$("), *inner]
    return parts[0]


def is_shell_substitution(name: str) -> bool:
    """Would a reader take `$(name)` for a command? Capitals and `step.workspace` look like ours."""
    if name.endswith(SUFFIXES):
        return False
    return _CAPITALS.fullmatch(name) is None
