"""SQL as users write it: words, and the names of columns that need quotes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

_TOKEN = re.compile(
    r"""(?P<text>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$)
      | (?P<quoted>"(?:[^"]|"")*") | (?P<comment>--[^\n]*|/\*.*?\*/)
      | (?P<word>[^\W\d]\w*(?:\.[^\W\d]\w*)*) | (?P<space>\s+) | (?P<number>\d[\w.]*) | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
_ENDS_FROM = ("where", "group", "having", "window", "qualify", "order", "limit", "offset", "union", "except",
              "intersect", "using")  # fmt: skip
_FRAME = {"select", "distinct", "from", "as", "join", "left", "on", "where", "having", "qualify", "limit", "offset",
          "union", "all", "except", "intersect", "with", "and", "or", "not", "in", "is", "null", "like", "between",
          "case", "when", "then", "else", "end", "over", "asc", "desc"}  # fmt: skip
_ABOUT_ALL = {"columns", "describe", "natural", "pivot", "query", "query_table", "summarize", "unpivot"}
# what follows the view's name and is no other name of it
_AFTER_VIEW = {*_ENDS_FROM, "join", "left", "right", "full", "inner", "cross", "on", "select"}


def quote(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def tokens(sql: str) -> Iterator[tuple[str, str]]:
    """(kind, text) for all of `sql`: text, quoted, comment, word (with its dots), number, space, other."""
    for match in _TOKEN.finditer(sql):
        yield str(match.lastgroup), match.group()


def mentioned(sql: str, names: Iterable[str], view: str) -> list[str]:
    """Those of `names` that a query over `view` may be about; all of them if it may be about every column."""
    listed = list(names)
    parts = [(kind, text.lower()) for kind, text in tokens(sql) if kind not in ("space", "comment")]
    texts = [text for _, text in parts]
    words = set().union(
        *({_unquoted(text), *text.split(".")} for kind, text in parts if kind in ("word", "quoted"))
    )
    if "select" not in words or words & _ABOUT_ALL or "#" in texts:  # #1 is the first column
        return listed
    if _has_star(texts) or _has_bare_from(texts) or _has_whole_row(parts, view):
        return listed
    return [name for name in listed if name.lower() in words]


def _unquoted(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def _has_star(texts: list[str]) -> bool:
    """True if a * may stand for every column: it neither is in count(*) nor multiplies a value."""
    for i, text in enumerate(texts):
        if text != "*" or texts[max(0, i - 2) : i + 2] == ["count", "(", "*", ")"]:
            continue
        before = texts[i - 1] if i else ""
        is_value = re.search(r"[\w)\]}'\"*]$", before) and before != "by" and before not in _FRAME
        if not is_value or "distinct" in texts:  # distinct on (x) *
            return True
    return False


def _has_bare_from(texts: list[str]) -> bool:
    """True if a query, or a part of it, has FROM without SELECT, which means every column."""
    ended: list[list[str]] = []
    begun: list[list[str]] = [[]]
    for text in texts:
        if text == "(":
            begun.append([])
        elif text in (")", "union", "except", "intersect"):
            ended.append(begun.pop())
            if text != ")":
                begun.append([])
            elif not begun:  # it cannot be parsed
                return True
        else:
            begun[-1].append(text)
    for words in [*ended, *begun]:
        first = next((word for word in words if word not in ("all", "by", "name", "distinct")), "")
        if first in ("from", "with") and "select" not in words:
            return True
    return False


def _has_whole_row(parts: list[tuple[str, str]], view: str) -> bool:
    """True if the view, or another name that it has in the query, may stand for a row with every column."""
    texts = [*(text for _, text in parts), "", "", ""]
    names = [_unquoted(text) if kind in ("word", "quoted") else "" for kind, text in parts] + ["", "", ""]
    own, sources = {view}, set()
    for i, name in enumerate(names):
        if name.rpartition(".")[2] == view and texts[i - 1] in ("from", "join"):
            sources.add(i)
            has_as = texts[i + 1] == "as"
            alias = i + 1 + has_as
            if names[alias] and (has_as or texts[alias] not in _AFTER_VIEW):
                own.add(names[alias])
                sources.add(alias)
                if texts[alias + 1] == "(":  # the columns get other names
                    return True
    for i, name in enumerate(names):
        is_own = name in own or name.endswith(f".{view}")
        if is_own and i not in sources and texts[i + 1] not in (".", "between"):  # rows between: of a window
            return True
    return False


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
