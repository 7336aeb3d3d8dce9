"""Expressions over a sample's fields, inputs and parameters: from text to a tree.

A subset of Python's expressions that means the same: numbers, texts, names, ``+ - * / // % **``, comparisons (also
chained), ``and or not``, indexing and the functions of `FUNCTIONS`. There are no other calls, attributes or
statements, so an expression can do nothing but compute. Unlike in Python every word but ``and``, ``or`` and ``not``
can be a name (``yield``, ``lambda``), a name may hold dots (``molecule.nodes``), and one with other characters is put
in back quotes (```mode (4,3)```). What operands an operator takes is in `expression_types`, what it computes in
``merlin.shards.writing.expression``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeAlias

from merlin.base.document.findings import allowed

MAX_DEPTH = 50
MAX_WORDS = 600

# of one argument, element by element
ELEMENTWISE = frozenset(
    {
        *("abs", "sign", "sqrt", "exp", "expm1", "log", "log1p", "log2", "log10", "floor", "ceil", "round"),
        *("sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "isfinite", "isnan"),
    }
)
# of one argument, over all of a sample's values
REDUCTIONS = frozenset({"sum", "mean", "std", "any", "all", "len"})
# `min` and `max` of one argument reduce, of several they compare element by element; others have a fixed number
SEVERAL = {
    "min": (1, None),
    "max": (1, None),
    "clip": (3, 3),
    "where": (3, 3),
    "arctan2": (2, 2),
    "hypot": (2, 2),
}
FUNCTIONS = ELEMENTWISE | REDUCTIONS | SEVERAL.keys()
CONSTANTS: dict[str, bool | float] = {
    "True": True,
    "False": False,
    "true": True,
    "false": False,
    "pi": math.pi,
    "inf": math.inf,
    "nan": math.nan,
}


class ExpressionError(Exception):
    """An expression cannot be read, or makes no sense; `col` counts from 1 in its text."""

    def __init__(self, message: str, col: int, hint: str = "", text: str = "") -> None:
        super().__init__(message)
        self.col = col
        self.hint = hint
        self.text = text  # what the message is about, as written


@dataclass(frozen=True, slots=True)
class Constant:
    value: bool | int | float | str
    col: int


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    col: int


@dataclass(frozen=True, slots=True)
class Unary:
    op: str  # "-", "+" or "not"
    operand: Node
    col: int


@dataclass(frozen=True, slots=True)
class Binary:
    op: str  # + - * / // % **
    left: Node
    right: Node
    col: int  # of the operator


@dataclass(frozen=True, slots=True)
class Compare:
    """``a < b <= c``: each pair of neighbours."""

    ops: tuple[str, ...]
    operands: tuple[Node, ...]
    col: int


@dataclass(frozen=True, slots=True)
class Logic:
    op: str  # "and" or "or"
    operands: tuple[Node, ...]
    col: int


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple[Node, ...]
    col: int


Slice: TypeAlias = tuple[int | None, int | None, int | None]  # start, stop, step


@dataclass(frozen=True, slots=True)
class Index:
    operand: Node
    items: tuple[int | Slice, ...]
    col: int


Node: TypeAlias = Constant | Name | Unary | Binary | Compare | Logic | Call | Index


@dataclass(frozen=True, slots=True)
class Expression:
    """A text and its tree. Equal texts are equal expressions."""

    text: str
    root: Node = field(compare=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Every name it uses, in the order of their first use."""
        return tuple(dict.fromkeys(node.name for node in walk(self.root) if isinstance(node, Name)))


def children(node: Node) -> tuple[Node, ...]:
    match node:
        case Unary() | Index():
            return (node.operand,)
        case Binary():
            return (node.left, node.right)
        case Compare() | Logic():
            return node.operands
        case Call():
            return node.arguments
    return ()


def walk(node: Node) -> Iterator[Node]:
    """The node and all below it."""
    yield node
    for child in children(node):
        yield from walk(child)


def parse(text: str) -> Expression:
    """Raises ExpressionError with the column of what cannot be read."""
    parser = _Parser(text)
    root = parser.parse()
    return Expression(text, root)


# ------------------------------------------------------------------------ words

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
    | `(?P<quoted>[^`]+)`
    | (?P<text>"[^"]*"|'[^']*')
    | (?P<op>\*\*|//|<=|>=|==|!=|[-+*/%<>()\[\],:])""",
    re.VERBOSE,
)
_INSTEAD = {
    "=": "write == to compare",
    "&": "write and",
    "|": "write or",
    "!": "write not, or != to compare",
    "^": "write ** for a power",
    "~": "write not",
    "$": "write the name alone, without $( )",
    "`": "close the back quote",
    '"': "close the quote",
    "'": "close the quote",
}
_COMPARISONS = frozenset({"<", "<=", ">", ">=", "==", "!="})


@dataclass(frozen=True, slots=True)
class _Word:
    kind: str  # number, name, quoted, text, op, end
    text: str
    col: int


def _words(text: str) -> Iterator[_Word]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            sign = text[at]
            hint = _INSTEAD.get(sign, "")
            raise ExpressionError(f"{sign!r} is not understood here", at + 1, hint, sign)
        kind = str(match.lastgroup)
        if kind != "space":
            yield _Word(kind, match[kind], at + 1)
        at = match.end()
    yield _Word("end", "", len(text) + 1)


# ----------------------------------------------------------------------- grammar


class _Parser:
    """Recursive descent, one method per level of precedence, the loosest first."""

    def __init__(self, text: str) -> None:
        self._words = list(islice(_words(text), MAX_WORDS))
        if self._words[-1].kind != "end":
            raise ExpressionError(
                f"longer than {MAX_WORDS} words", self._words[-1].col, "derive a field for a part of it"
            )
        self._at = 0
        self._depth = 0

    def parse(self) -> Node:
        if self._word.kind == "end":
            raise ExpressionError("the expression is empty", 1)
        root = self._or()
        if self._word.kind != "end":
            raise self._unexpected("the end of the expression")
        return root

    # words

    @property
    def _word(self) -> _Word:
        return self._words[self._at]

    def _next(self) -> _Word:
        word = self._word
        self._at += word.kind != "end"
        return word

    def _take(self, *texts: str) -> _Word | None:
        """The next word if it is one of these operators (or `and`, `or`, `not`)."""
        word = self._word
        if word.kind in ("op", "name") and word.text in texts:
            return self._next()
        return None

    def _expect(self, text: str) -> None:
        if self._take(text) is None:
            raise self._unexpected(f"'{text}'")

    def _unexpected(self, wanted: str) -> ExpressionError:
        word = self._word
        found = f"'{word.text}'" if word.kind != "end" else "the end of the expression"
        return ExpressionError(f"expected {wanted}, found {found}", word.col, text=word.text)

    # levels

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError("nested too deeply", self._word.col)
        node = self._logic("or", lambda: self._logic("and", self._not))
        self._depth -= 1
        return node

    def _logic(self, op: str, inner: Callable[[], Node]) -> Node:
        first = inner()
        operands, col = [first], self._word.col
        while self._take(op):
            operands.append(inner())
        return Logic(op, tuple(operands), col) if len(operands) > 1 else first

    def _not(self) -> Node:
        signs = []
        while word := self._take("not"):
            signs.append(word)
        node = self._comparison()
        for word in reversed(signs):
            node = Unary("not", node, word.col)
        return node

    def _comparison(self) -> Node:
        first = self._sum()
        ops, operands, col = [], [first], self._word.col
        while word := self._take(*_COMPARISONS):
            ops.append(word.text)
            operands.append(self._sum())
        return Compare(tuple(ops), tuple(operands), col) if ops else first

    def _sum(self) -> Node:
        node = self._term()
        while word := self._take("+", "-"):
            node = Binary(word.text, node, self._term(), word.col)
        return node

    def _term(self) -> Node:
        node = self._unary()
        while word := self._take("*", "/", "//", "%"):
            node = Binary(word.text, node, self._unary(), word.col)
        return node

    def _unary(self) -> Node:
        signs = []
        while word := self._take("-", "+"):
            signs.append(word)
        node = self._power()
        for word in reversed(signs):
            node = Unary(word.text, node, word.col)
        return node

    def _power(self) -> Node:
        base = self._indexed()
        word = self._take("**")
        if word is None:
            return base
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError("nested too deeply", word.col)
        node = Binary("**", base, self._unary(), word.col)
        self._depth -= 1
        return node

    def _indexed(self) -> Node:
        node = self._atom()
        while word := self._take("["):
            items = [self._item()]
            while self._take(","):
                items.append(self._item())
            self._expect("]")
            node = Index(node, tuple(items), word.col)
        return node

    def _item(self) -> int | Slice:
        start = self._integer()
        if self._take(":") is None:
            if start is None:
                raise self._unexpected("a whole number or ':'")
            return start
        stop = self._integer()
        step = self._integer() if self._take(":") else None
        if step == 0:
            raise ExpressionError("the step of a slice cannot be 0", self._word.col)
        return start, stop, step

    def _integer(self) -> int | None:
        sign = self._take("-")
        word = self._word
        if word.kind == "number" and word.text.replace("_", "").isdigit():
            self._next()
            return -int(word.text) if sign else int(word.text)
        if sign:
            raise self._unexpected("a whole number")
        return None

    def _atom(self) -> Node:
        word = self._next()
        match word.kind:
            case "number":
                return Constant(_number(word), word.col)
            case "text":
                return Constant(word.text[1:-1], word.col)
            case "quoted":
                return Name(word.text, word.col)
            case "name" if word.text not in ("and", "or", "not"):
                if self._take("("):
                    return self._call(word)
                return Name(word.text, word.col)
            case "op" if word.text == "(":
                node = self._or()
                self._expect(")")
                return node
        self._at -= word.kind != "end"
        raise self._unexpected("a value")

    def _call(self, word: _Word) -> Node:
        if word.text not in FUNCTIONS:
            hint = allowed(word.text, FUNCTIONS, "functions")
            raise ExpressionError(f"there is no function {word.text!r}", word.col, hint, word.text)
        arguments: list[Node] = []
        if not self._take(")"):
            arguments.append(self._or())
            while self._take(","):
                arguments.append(self._or())
            self._expect(")")
        low, high = SEVERAL.get(word.text, (1, 1))
        if not low <= len(arguments) <= (high or len(arguments)):
            wanted = f"{low}" if high == low else f"at least {low}"
            raise ExpressionError(
                f"{word.text}() takes {wanted} argument{'s' * (low > 1)}, not {len(arguments)}",
                word.col,
                text=word.text,
            )
        return Call(word.text, tuple(arguments), word.col)


def _number(word: _Word) -> int | float:
    text = word.text.replace("_", "")
    value = int(text) if text.isdigit() else float(text)
    if isinstance(value, int) and value >= 1 << 63:
        return float(value)
    if isinstance(value, float) and math.isinf(value):
        raise ExpressionError(f"{word.text} is too large for a number", word.col, text=word.text)
    return value
