"""YAML text as a tree of entries that know their place in the text.

PyYAML composes the nodes; merge keys, anchors and duplicate keys are dealt with here, so that every value
keeps the place where it was written. Unquoted commands with ": " in them are made readable first (`compose`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import yaml
from msgspec import Struct

from merlin.base.document.findings import NOWHERE, Findings, Place, SourceText
from merlin.base.document.scalars import Plain, plain_scalar
from merlin.base.document.tokens import TOKEN

Path: TypeAlias = tuple[str | int, ...]

# Keys whose value is a script: text as written, whatever YAML would make of it.
SCRIPT_KEYS = frozenset({"cmd", "restart"})

MAX_MORE_ENTRIES = 100_000  # more than characters; aliases of aliases could multiply the entries

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_BLANK = "\ue000"  # stands for the blank of ": " in an unquoted command
_COLON = "\ue001"  # stands for a ":" at the end of a line of an unquoted command
_COLON_PROBLEM = "mapping values are not allowed"  # what YAML says of a ": " in unquoted text
_COMMAND_LINE = re.compile(
    r"^(?P<indent>[ ]*(?:-[ ]+)*)(?P<key>cmd|restart):[ ]+(?P<first>[^\s|>'\"&*!{\[#%@`])"
)


class Entry(Struct, frozen=True):
    """A value of the spec: a mapping, a list, a text, or None."""

    content: dict[str, Entry] | list[Entry] | str | None
    place: Place = NOWHERE
    key_place: Place = NOWHERE
    start: int = -1  # offsets of the value in the text, -1 if it is not from there
    end: int = -1
    plain: bool = False  # an unquoted scalar, whose type YAML decides
    verbatim: bool = False  # from the command line: in commands it is what was typed there

    @property
    def mapping(self) -> dict[str, Entry]:
        """The entries of a mapping; empty for anything else."""
        return self.content if isinstance(self.content, dict) else {}

    @property
    def items(self) -> list[Entry]:
        """The entries of a list; a single text counts as a list of one."""
        if isinstance(self.content, list):
            return self.content
        return [self] if isinstance(self.content, str) else []

    @property
    def text(self) -> str:
        """The text of a scalar; empty for anything else."""
        return self.content if isinstance(self.content, str) else ""

    @property
    def is_null(self) -> bool:
        return self.content is None

    def get(self, *path: str | int) -> Entry:
        """The entry at a path; an empty entry without a place if there is none."""
        at = self
        for key in path:
            if isinstance(at.content, dict) and key in at.content:
                at = at.content[str(key)]
            elif isinstance(at.content, list) and isinstance(key, int) and 0 <= key < len(at.content):
                at = at.content[key]
            else:
                return MISSING
        return at

    def nearest(self, path: Path) -> Entry:
        """The entry at a path, or at the longest part of it that exists."""
        at = self
        for key in path:
            inner = at.get(key)
            if inner is MISSING:
                break
            at = inner
        return at

    def walk(self, path: Path = ()) -> Iterator[tuple[Path, Entry]]:
        """Every entry with its path, this one first."""
        yield path, self
        if isinstance(self.content, dict):
            for key, item in self.content.items():
                yield from item.walk((*path, key))
        elif isinstance(self.content, list):
            for index, item in enumerate(self.content):
                yield from item.walk((*path, index))


MISSING = Entry(None)


def to_data(entry: Entry, key: str = "") -> Any:
    """Plain dicts, lists and texts; unquoted scalars are `scalars.Plain` where YAML types them."""
    content = entry.content
    if isinstance(content, dict):
        return {name: to_data(item, name) for name, item in content.items()}
    if isinstance(content, list):
        return [to_data(item) for item in content]
    if content is None or not entry.plain or key in SCRIPT_KEYS:
        return content
    scalar = plain_scalar(content)
    return content if entry.verbatim and isinstance(scalar, Plain) and not scalar.keeps_text else scalar


def token_place(source: SourceText, entry: Entry, name: str, nth: int) -> Place:
    """Where the nth token of this name stands in the text of a scalar."""
    if entry.start < 0:
        return entry.place
    seen = 0
    for match in TOKEN.finditer(source.text, entry.start, entry.end):
        if match[1] == name:
            if seen == nth:
                return source.place(match.start())
            seen += 1
    return entry.place


def parse(
    source: SourceText,
    findings: Findings,
    *,
    what: str = "spec",
    blocks: str = "description, env, study, …",
    needs: str = "description and study",
) -> Entry | None:
    """The tree of the text, or None (with findings) if it is no YAML mapping; the words are for messages."""
    try:
        root = compose(source.text)
    except yaml.YAMLError as error:
        _report_yaml(error, source, findings)
        return None
    except RecursionError:
        findings.error((1, 1), "the YAML is nested too deeply", code="yaml")
        return None
    if root is None:
        findings.error((1, 1), f"the {what} is empty", code="empty", hint=f"it needs at least {needs}")
        return None
    if not isinstance(root, yaml.MappingNode):
        message = f"a {what} is a mapping of blocks ({blocks})"
        findings.error(_node_place(root), message, text=source.line(1), code="type")
        return None
    return _Builder(findings, MAX_MORE_ENTRIES + len(source.text)).entry(root)


def compose(text: str) -> yaml.Node | None:
    """The node tree. Where YAML refuses `cmd: echo a: b`, the colons of that command stop being YAML's.

    Stand-ins of one character keep every line and column; `_Builder` puts the colons and blanks back.
    """
    while True:
        try:
            node: yaml.Node | None = _compose(text)
            return node
        except yaml.MarkedYAMLError as error:
            if _COLON_PROBLEM not in str(error.problem) or error.problem_mark is None:
                raise
            lines = text.split("\n")
            if not _shield(lines, error.problem_mark.line):
                raise
            text = "\n".join(lines)


def _compose(text: str) -> yaml.Node | None:
    loader = _LOADER(text)
    try:
        node: yaml.Node | None = loader.get_single_node()
        return node
    finally:
        loader.dispose()


def _shield(lines: list[str], number: int) -> bool:
    """Take YAML's meaning from the colons of the unquoted command on this line; False if there is none."""
    match = _COMMAND_LINE.match(lines[number])
    if match is None:
        return False
    head, tail = lines[number][: match.start("first")], lines[number][match.start("first") :]
    new = re.sub(r":(?=\r?$)", _COLON, re.sub(r"(?<=:) ", _BLANK, tail))
    lines[number] = head + new
    return new != tail


def _continued_command(source: SourceText, number: int) -> str:
    """The key of the unquoted command that a line continues; empty if it continues none."""
    *above, last = source.text.splitlines()[:number]
    least = _indent(last)
    for line in reversed(above):
        if match := _COMMAND_LINE.match(line):
            return match["key"] if match.end("indent") < least else ""
        if line.strip():
            least = min(least, _indent(line))
    return ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _node_place(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


class _Builder:
    """Turns composed nodes into entries."""

    def __init__(self, findings: Findings, max_entries: int) -> None:
        self._findings = findings
        self._num_left = max_entries  # entries that may still be made
        self._open: set[int] = set()  # ids of the nodes above, to recognise an anchor inside itself

    def entry(self, node: yaml.Node, key_place: Place = NOWHERE) -> Entry:
        place = _node_place(node)
        span = (node.start_mark.index, node.end_mark.index)
        self._num_left -= 1
        if self._num_left < 0:
            if self._num_left == -1:
                self._findings.error(place, "aliases (*name) make too much of this text", code="yaml")
            return Entry(None, place, key_place)
        if isinstance(node, yaml.ScalarNode):
            plain = not node.style
            text: str | None = node.value
            if plain:  # only unquoted commands are shielded; elsewhere the characters are the writer's own
                text = node.value.replace(_BLANK, " ").replace(_COLON, ":")
            if plain and node.tag.endswith(":null"):
                text = None
            return Entry(text, place, key_place, *span, plain=plain)
        if id(node) in self._open:
            self._findings.error(place, "an anchor is used inside itself", code="yaml")
            return Entry(None, place, key_place)
        self._open.add(id(node))
        content: dict[str, Entry] | list[Entry]
        if isinstance(node, yaml.MappingNode):
            content = self._mapping(node)
        else:
            content = [self.entry(item) for item in node.value]
        self._open.discard(id(node))
        return Entry(content, place, key_place, *span)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Entry]:
        merged: dict[str, Entry] = {}
        own: dict[str, Entry] = {}
        for key, value in node.value:
            place = _node_place(key)
            if not isinstance(key, yaml.ScalarNode):
                self._findings.error(place, "a key must be text, not a list or a mapping", code="yaml")
            elif key.tag.endswith(":merge"):
                self._merge(value, merged)
            elif key.value in own:
                first = own[key.value].key_place
                message = f"key {key.value!r} is given twice"
                hint = f"the first one is on line {first[0]}; remove one of them"
                self._findings.error(place, message, text=key.value, hint=hint, code="duplicate-key")
            else:
                own[key.value] = self.entry(value, place)
        return {**merged, **own}

    def _merge(self, value: yaml.Node, into: dict[str, Entry]) -> None:
        if isinstance(value, yaml.SequenceNode):
            for item in reversed(value.value):  # the first of the list wins
                self._merge(item, into)
            return
        inner = self.entry(value)
        if not isinstance(inner.content, dict):
            self._findings.error(inner.place, "<<: needs a mapping to merge, e.g. <<: *anchor", code="yaml")
            return
        into.update(inner.content)


_EXPLANATIONS = (
    (_COLON_PROBLEM, "': ' cannot stand in unquoted text", 'quote the value: key: "a: b"'),
    ("found undefined alias", "the alias has no anchor", "define it with &name before it is used"),
    ("found another document", "a file holds one YAML document here", "remove the line with ---"),
    (
        "did not find expected key",
        "a key was expected here",
        "check indentation; a value that goes on after a closing quote or bracket needs a block: cmd: |",
    ),
    (
        "did not find expected ',' or",
        "a list or mapping in brackets is not closed",
        "close it, or quote the value",
    ),
    (
        "did not find expected '-' indicator",
        "a list item was expected here",
        "items of a list start with '- '",
    ),
    (
        "could not find expected ':'",
        "a key without a colon",
        "write key: value, or indent this line as part of the value above",
    ),
    (
        "expected alphabetic or numeric character",
        "* and & begin aliases and anchors, and need a name after them",
        'quote a star of its own: "*"',
    ),
    (
        "cannot start any token",
        "this character cannot start a value",
        "quote the value, or use a block: cmd: |",
    ),
    ("found unexpected end of stream", "a quote is not closed", "close the quote"),
    ("control characters are not allowed", "the file holds a control character", "remove it"),
)


def _report_yaml(error: yaml.YAMLError, source: SourceText, findings: Findings) -> None:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or error).splitlines()[0]
    if mark is None:
        offset = getattr(error, "position", None)
        place = source.place(offset) if isinstance(offset, int) else (1, 1)
        findings.error(place, f"bad YAML: {problem}", code="yaml")
        return
    line = mark.line + 1
    text = source.line(line)
    tabbed = _tab_lines(source, line)
    if tabbed and ("token" in problem or "expected" in problem or "tab" in problem):
        for number in tabbed:
            where = source.line(number)
            findings.error(
                (number, where.index("\t") + 1),
                "a tab is used for indentation",
                text=where,
                hint="YAML indents with blanks only",
                code="tab",
            )
        return
    if _COLON_PROBLEM in problem and (key := _continued_command(source, line)):
        findings.error(
            (line, _indent(text) + 1),
            f"this line is read as part of the command of {key!r}, where ': ' may stand in the first line only",
            text=text.strip(),
            hint=f"if it is a key, indent it like {key}; if it belongs to the command, use a block: {key}: |",
            code="yaml",
        )
        return
    _report_problem(problem, mark, getattr(error, "context_mark", None) or mark, source, findings)


def _report_problem(problem: str, mark: Any, opened: Any, source: SourceText, findings: Findings) -> None:
    """Report what the parser could not read at `mark`, in something that was opened at `opened`."""
    message, hint = next(
        ((message, hint) for needle, message, hint in _EXPLANATIONS if needle in problem), (problem, "")
    )
    if message.endswith("is not closed"):  # which the parser noticed later, perhaps at the end of the file
        hint += f"; the file was read up to line {mark.line + 1}" if opened.line < mark.line else ""
        mark = opened
    text = source.line(mark.line + 1).strip()
    findings.error(
        (mark.line + 1, mark.column + 1), f"bad YAML: {message}", text=text, hint=hint, code="yaml"
    )


def _tab_lines(source: SourceText, near: int) -> list[int]:
    """All lines indented with a tab, if one of them is where the parser stopped."""
    lines = [
        number
        for number, text in enumerate(source.text.splitlines(), 1)
        if "\t" in text[: len(text) - len(text.lstrip())] and text.strip()
    ]
    return lines if any(abs(number - near) <= 1 for number in lines) else []
