"""`$(NAME)` tokens in text: finding them, filling them in, telling them from the shell's `$(command)`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

# One word in "$(" and ")": no blanks, quotes or operators, so "$(ls | wc -l)" and "$((1+2))" do not match.
TOKEN = re.compile(r"\$\(([^\s()$`'\"|;&<>{}]+)\)")

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


def substitute(text: str, mapping: Mapping[str, str]) -> str:
    """Fill in the tokens that the mapping knows, in one pass; leave all others as they are."""
    if "$(" not in text:
        return text
    return TOKEN.sub(lambda m: mapping.get(m[1], m[0]), text)


def is_shell_substitution(name: str) -> bool:
    """Would a reader take `$(name)` for a command? Capitals and `step.workspace` look like ours."""
    if name.endswith(SUFFIXES):
        return False
    return _CAPITALS.fullmatch(name) is None
