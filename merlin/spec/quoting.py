"""How each `$(NAME)` of a shell script is quoted: would the shell run it, or is it text?

The scan knows quotes, comments, here-documents and substitutions inside of each other. What it cannot follow counts
as unquoted, which is the strictest answer.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from merlin.base.document.tokens import TOKEN, Token, find_tokens

# "here": in a here-document whose delimiter is not quoted; "text": where nothing is expanded
Quoting = Literal["plain", "double", "here", "single", "text", "comment"]

# sh, bash, ksh93, bash-5.2, pwsh, …; the shells of Tcl do not run $(NAME)
_SHELL = re.compile(r"(?:^|[/\s])(?!tclsh|wish)\w*sh[\d.]*(?:-[\w.]+)?(?:\s|$)")
_BOURNE_SHELL = re.compile(r"(?:^|[/\s])(?:ba|da|k|z|a)?sh(?:\s|$)")
_ORDINARY = re.compile(r"[^\\'\"$`#()<>{};&|\s]+")
_HERE = re.compile(r"<<(?P<tabs>-?)[ \t]*(?P<word>(?:'[^']*'|\"[^\"]*\"|\\.|[^\s;&|<>()'\"\\])+)", re.DOTALL)
_MARKS = re.compile(r"['\"\\]")
_CASE = re.compile(r"(case|esac)(?![\w.-])")
_BEFORE_COMMAND = re.compile(r"(?:^|[\n;&|(){}!]|(?<![\w-])(?:then|do|else|elif|if|while|until))$")
_BEFORE_CHARACTERS = 100
_BACKQUOTED = re.compile(r"(?:[^`\\]|\\.)*", re.DOTALL)
_UNESCAPED = re.compile(r"\\[$`\\\"]")  # what loses its backslash inside backquotes
_BETWEEN_WORDS = frozenset(" \t\n;&|<>")


class Use(Struct, frozen=True):
    """A token, and how it is quoted where it stands."""

    token: Token
    quoting: Quoting
    escaped: bool = False  # written \\$(NAME)

    @property
    def runs(self) -> bool:
        """True if a shell takes an undefined `$(NAME)` here for a command."""
        return not self.escaped and self.quoting in ("plain", "double", "here")

    @property
    def in_quotes(self) -> bool:
        """True if the value of the token stays one word, even if it has blanks."""
        return self.quoting != "plain"


def is_shell(shell: str) -> bool:
    """True if scripts of this interpreter are a shell's; one that is not known yet may be."""
    return not shell.strip() or "$(" in shell or _SHELL.search(shell) is not None


def is_bourne_shell(shell: str) -> bool:
    """True if scripts of this interpreter may begin with the lines of env.sources."""
    return _BOURNE_SHELL.search(shell) is not None


def uses(script: str) -> list[Use]:
    """Every token of a script, in order."""
    tokens = find_tokens(script)
    if not tokens:
        return []
    scan = _Scan(script)
    try:
        scan.script()
    except RecursionError:
        scan.found.clear()
    return [Use(token, *scan.found.get(token.start, ("plain", False))) for token in tokens]


class _Scan:
    """Reads a script once from left to right."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.stop = len(text)
        self.found: dict[int, tuple[Quoting, bool]] = {}  # start of a token -> quoting, escaped
        self._waiting: list[tuple[str, bool, bool]] = []  # here-documents that begin with the next line

    def script(self) -> None:
        while self.at < self.stop:
            self._unquoted("")

    def _unquoted(self, end: str, *, arithmetic: bool = False) -> None:
        """Up to and with `end`: ")", "}", or "" for the end of the text."""
        new_word, cases = end != "}", 0
        while self.at < self.stop:
            char = self.text[self.at]
            if char == end and not (char == ")" and cases):
                self.at += 1
                return
            if new_word and (word := _CASE.match(self.text, self.at)) and self._begins_command():
                cases += 1 if word[1] == "case" else -1 if cases else 0
            if match := _ORDINARY.match(self.text, self.at, self.stop):
                self.at = match.end()
                new_word = False
                continue
            if char in _BETWEEN_WORDS:
                self._between(char, has_documents=end != "}", arithmetic=arithmetic)
                new_word = True
                continue
            if char == "#" and new_word and end != "}":
                self._until("\n", "comment", keep_end=True)
                continue
            new_word = char in "()"
            if char == "(":
                arithmetic_inside = arithmetic or self.text.startswith("((", self.at)
                self.at += 1
                self._unquoted(")", arithmetic=arithmetic_inside)
            elif char == "'":
                self.at += 1
                self._until("'", "single")
            elif char == '"':
                self.at += 1
                self._expanding('"', "double")
            elif self.text.startswith("$'", self.at):
                self.at += 2
                self._ansi()
            else:
                self._special("plain")

    def _begins_command(self) -> bool:
        """True if the word that begins here is a command, and no argument of one."""
        before = self.text[max(0, self.at - _BEFORE_CHARACTERS) : self.at].replace("\\\n", " ")
        return _BEFORE_COMMAND.search(before.rstrip(" \t")) is not None

    def _between(self, char: str, *, has_documents: bool, arithmetic: bool) -> None:
        if char == "<" and has_documents and not self.text.startswith("<<<", self.at):
            match = _HERE.match(self.text, self.at, self.stop)
            if match:
                self._document(match, arithmetic)
                return
        self.at += 3 if self.text.startswith("<<<", self.at) else 1
        if char == "\n" and self._waiting:
            self._documents()

    def _document(self, match: re.Match[str], arithmetic: bool) -> None:
        """Read `<<WORD`: a here-document if its delimiter follows, else in arithmetic a shift; else give up."""
        word, tabs = match["word"], bool(match["tabs"])
        delimiter = _MARKS.sub("", word)
        if self._end_of_document(match.end(), delimiter, tabs)[0] < self.stop:
            self._waiting.append((delimiter, tabs, bool(_MARKS.search(word))))
        elif not arithmetic:
            self.at = self.stop
            return
        self.at = match.end()

    def _expanding(self, end: str, quoting: Quoting) -> None:
        """Text with `$` and backticks in it, up to and with `end`."""
        while self.at < self.stop:
            char = self.text[self.at]
            if char == end:
                self.at += 1
                return
            if char == '"' and end == "}":
                self.at += 1
                self._expanding('"', "double")
            else:
                self._special(quoting)

    def _special(self, quoting: Quoting) -> None:
        """One character, or what begins with it: an escape, a token, a substitution."""
        text, at = self.text, self.at
        if text[at] == "\\":
            token = TOKEN.match(text, at + 1, self.stop)
            if token:
                self.found[token.start()] = (quoting, True)
            self.at = token.end() if token else at + 2
        elif token := TOKEN.match(text, at, self.stop):
            self.found[at] = (quoting, False)
            self.at = token.end()
        elif text.startswith("$(", at):
            self.at += 2
            self._unquoted(")", arithmetic=text.startswith("$((", at))
        elif text.startswith("${", at):
            self.at += 2
            if quoting == "plain":
                self._unquoted("}")
            else:
                self._expanding("}", quoting)
        elif text[at] == "`":
            self._backquoted()
        else:
            self.at += 1

    def _backquoted(self) -> None:
        """`…`, up to the next backquote. Where backslashes are taken away, all of it counts as run."""
        begin, waiting, stop = self.at + 1, self._waiting, self.stop
        end = _BACKQUOTED.match(self.text, begin, stop).end()  # type: ignore[union-attr]
        if not _UNESCAPED.search(self.text, begin, end):
            self.at, self.stop, self._waiting = begin, end, []
            self._unquoted("")
            self.stop, self._waiting = stop, waiting
        self.at = end + 1

    def _ansi(self) -> None:
        """$'…', in which a backslash escapes a quote."""
        begin = self.at
        while self.at < self.stop and self.text[self.at] != "'":
            self.at += 2 if self.text[self.at] == "\\" else 1
        self._note(begin, self.at, "single")
        self.at += 1

    def _until(self, end: str, quoting: Quoting, *, keep_end: bool = False) -> None:
        begin = self.at
        found = self.text.find(end, begin, self.stop)
        last = self.stop if found < 0 else found
        self._note(begin, last, quoting)
        self.at = last if keep_end else last + 1

    def _note(self, begin: int, last: int, quoting: Quoting) -> None:
        for token in TOKEN.finditer(self.text, begin, last):
            self.found[token.start()] = (quoting, False)

    def _documents(self) -> None:
        """The here-documents that begin here."""
        waiting, self._waiting = self._waiting, []
        for delimiter, tabs, quoted in waiting:
            begin = self.at
            end, after = self._end_of_document(begin, delimiter, tabs)
            if quoted:
                self._note(begin, end, "text")
            else:
                stop, self.stop = self.stop, end
                self._expanding("", "here")
                self.stop = stop
            self.at = after

    def _end_of_document(self, begin: int, delimiter: str, tabs: bool) -> tuple[int, int]:
        """Where the delimiter of a here-document stands, and where the script continues."""
        at = begin
        while at < self.stop:
            newline = self.text.find("\n", at, self.stop)
            last = self.stop if newline < 0 else newline
            line = self.text[at:last]
            if (line.lstrip("\t") if tabs else line) == delimiter:
                return at, last
            at = last + 1
        return self.stop, self.stop
