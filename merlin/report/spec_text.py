"""A spec as it was written, with its keys, tokens and comments told apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

STYLE = """
pre.spec .k { color: var(--blue); }
pre.spec .t { color: var(--purple); font-weight: 600; }
pre.spec .c { color: var(--soft); font-style: italic; }
"""

_KEY = re.compile(r"""^(\s*(?:-\s+)*)([^\s#"'{\[&*!|>%@`-][^:#]*?|"[^"]*"|'[^']*')(:)(?=\s|$)(.*)$""")
_BLOCK = re.compile(r"^\s*(?:&\S+\s*)?[|>][-+0-9]*\s*(?:#.*)?$")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$")
_TOKEN = re.compile(r"\$\([\w.]+\)")


def spec_html(text: str) -> str:
    """The text as a <pre> element."""
    return f'<pre class="spec"><code>{chr(10).join(_lines(text))}</code></pre>'


def _lines(text: str) -> Iterator[str]:
    script_below: int | None = None  # inside the text of a key that is indented so far
    for line in text.rstrip().split("\n"):
        indent = len(line) - len(line.lstrip())
        if script_below is not None and (indent > script_below or not line.strip()):
            yield _words(line)
            continue
        script_below = None
        key = _KEY.match(line)
        if key is None:
            yield _words(line)
            continue
        before, name, colon, rest = key.groups()
        if _BLOCK.match(rest):
            script_below = len(before) - len(before.lstrip()) if "-" not in before else len(before) - 1
        yield f'{escape(before)}<span class="k">{_tokens(name)}</span>{colon}{_words(rest)}'


def _words(text: str) -> str:
    comment = _COMMENT.search(text)
    if comment is None:
        return _tokens(text)
    return f'{_tokens(text[: comment.start()])}<span class="c">{escape(comment.group())}</span>'


def _tokens(text: str) -> str:
    parts, at = [], 0
    for token in _TOKEN.finditer(text):
        parts += [escape(text[at : token.start()]), f'<span class="t">{escape(token.group())}</span>']
        at = token.end()
    return "".join([*parts, escape(text[at:])])
