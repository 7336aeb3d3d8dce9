"""SQL as users write it: words, and the names of columns that need quotes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_TOKEN = re.compile(
    r"""(?P<text>'(?:[^']|'')*') | (?P<quoted>"(?:[^"]|"")*") | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<word>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*) | (?P<space>\s+) | (?P<number>\d[\w.]*) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_ENDS_FROM = ("where", "group", "having", "window", "qualify", "order", "limit", "offset", "union", "except",
              "intersect", "using")  # fmt: skip
_FRAME = {"select", "distinct", "from", "as", "join", "left", "on", "where", "having", "qualify", "limit", "offset",
          "union", "all", "except", "intersect", "with", "and", "or", "not", "in", "is", "null", "like", "between",
          "case", "when", "then", "else", "end", "over", "asc", "desc"}  # fmt: skip


def quote(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def tokens(sql: str) -> Iterator[tuple[str, str]]:
    """(kind, text) for all of `sql`: text, quoted, comment, word (with its dots), number, space, other."""
    for match in _TOKEN.finditer(sql):
        yield str(match.lastgroup), match.group()


def mentioned(sql: str, names: Iterable[str]) -> list[str]:
    """Those of `names` that a query may be about; all of them if it asks for every column."""
    listed = list(names)
    words: set[str] = set()
    for kind, text in tokens(sql):
        if kind == "word":
            words |= {text.lower(), *text.lower().split(".")}
        elif kind == "quoted":
            words.add(text[1:-1].replace('""', '"').lower())
    stars = re.search(r"(?:\bselect|\bdistinct|,|\.)\s*\*", sql, re.IGNORECASE)
    if stars or "select" not in words or words & {"columns", "summarize", "describe"}:
        return listed
    return [name for name in listed if name.lower() in words]


def quote_dotted(sql: str, names: Iterable[str]) -> str:
    """Quotes around names with dots, which SQL would take for a table's columns."""
    dotted = {name.lower(): quote(name) for name in names if "." in name}
    return "".join(dotted.get(text.lower(), text) if kind == "word" else text for kind, text in tokens(sql))


def quote_keywords(sql: str, names: Iterable[str], *, is_query: bool = False) -> str:
    """Put quotes around every word that is a name, except the first word of GROUP BY and its like.

    In a query, the words that it is built of get no quotes, either.
    """
    known: Mapping[str, str] = {name.lower(): quote(name) for name in names}
    parts = list(tokens(sql))
    found = []
    for i, (kind, text) in enumerate(parts):
        head, dot, last = text.rpartition(".")
        is_built_of = is_query and not dot and last.lower() in _FRAME
        if kind == "word" and last.lower() in known and not is_built_of and not _is_before_by(parts, i):
            text = f"{head}{dot}{known[last.lower()]}"
        found.append(text)
    return "".join(found)


def _is_before_by(parts: list[tuple[str, str]], i: int) -> bool:
    following = (text.lower() for kind, text in parts[i + 1 :] if kind not in ("space", "comment"))
    return next(following, "") == "by"


def with_from(sql: str, view: str) -> str:
    """The query with FROM `view`, if it is a SELECT without FROM."""
    parts = list(tokens(sql))
    words = [text.lower() for kind, text in parts if kind == "word"]
    if words[:1] != ["select"]:
        return sql
    depth, position, at = 0, 0, len(sql.rstrip().rstrip(";"))
    for i, (kind, text) in enumerate(parts):
        depth += {"(": 1, ")": -1}.get(text, 0) if kind == "other" else 0
        word = text.lower() if kind == "word" and depth == 0 else ""
        if word == "from":
            return sql
        if word in _ENDS_FROM and (word not in ("group", "order") or _is_before_by(parts, i)):
            at = min(at, position)
        position += len(text)
    return f"{sql[:at].rstrip()} FROM {view} {sql[at:].lstrip()}".rstrip()
