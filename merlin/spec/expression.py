"""Expressions over a sample's fields, inputs and parameters: from text to a syntax tree of Python's.

A subset of Python's expressions that means the same: numbers, texts, names, ``+ - * / // % **``, comparisons (also
chained), ``and or not``, indexing and the functions of `FUNCTIONS`. There are no other calls, attributes or
statements, so an expression can do nothing but compute. Unlike in Python every word but ``and``, ``or`` and ``not``
can be a name (``yield``, ``lambda``), a name may hold dots (``molecule.nodes``), and one with other characters is put
in back quotes (```mode (4,3)```). Python's parser therefore sees a stand-in for each name. What operands an operator
takes is in `expression_types`, what it computes in ``merlin.shards.writing.expression``.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise

from msgspec import Struct

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
class Expression:
    """A text and its tree. Equal texts are equal expressions.

    The nodes are Constant, Name, UnaryOp, BinOp, Compare, BoolOp, Call of a name and Subscript. In each of them
    `col_offset` is the column of `text`, counted from 1, that a message about the node points at: its operator's, if
    it has one.
    """

    text: str
    root: ast.expr = field(compare=False)
    names: tuple[str, ...] = field(compare=False)  # every name it uses, in the order of their first use


# Operators of a tree by their types, as they are written.
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.And: "and",
    ast.Or: "or",
}


def parse(text: str) -> Expression:
    """Raises ExpressionError with the column of what cannot be read."""
    words = list(islice(_words(text), MAX_WORDS))
    if words[-1].kind != "end":
        raise ExpressionError(
            f"longer than {MAX_WORDS} words", words[-1].col, "derive a field for a part of it"
        )
    if len(words) == 1:
        raise ExpressionError("the expression is empty", 1)
    _check_order(words)
    root = _tree(words)
    _check_depth(root)
    for node in ast.walk(root):
        if isinstance(node, ast.Call):
            _check_call(node)
        elif isinstance(node, ast.Subscript):
            indices(node)
    used = [a.value for a, b in pairwise(words) if a.is_name and b.text != "("]
    return Expression(text, root, tuple(dict.fromkeys(str(name) for name in used)))


def indices(node: ast.Subscript) -> tuple[int | slice, ...]:
    """What stands in the brackets, as Python indexes with it. Raises ExpressionError if it is anything else."""
    items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    return tuple(_slice(item) if isinstance(item, ast.Slice) else _whole_number(item) for item in items)


def _slice(node: ast.Slice) -> slice:
    parts = [None if part is None else _whole_number(part) for part in (node.lower, node.upper, node.step)]
    if node.step is not None and parts[2] == 0:
        raise ExpressionError("the step of a slice cannot be 0", node.step.col_offset)
    return slice(*parts)


def _whole_number(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    raise ExpressionError("expected a whole number or ':'", node.col_offset)


# ------------------------------------------------------------------------ words

_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<op>(?:and|or|not)\b(?!\.[^\W\d])|\*\*|//|<=|>=|==|!=|[-+*/%<>()\[\],:])
    | (?P<name>[^\W\d]\w*(?:\.[^\W\d]\w*)*)
    | `(?P<quoted>[^`]+)`
    | (?P<text>"[^"]*"|'[^']*')""",
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


class _Word(Struct, frozen=True):
    kind: str  # number, name, quoted, text, op, end
    text: str
    col: int

    @property
    def is_name(self) -> bool:
        return self.kind in ("name", "quoted")

    @property
    def ends_value(self) -> bool:
        return self.is_name or self.kind in ("number", "text") or self.text in (")", "]")

    @property
    def value(self) -> int | float | str:
        """What a number or a text stands for."""
        if self.kind == "text":
            return self.text[1:-1]
        if self.kind != "number":
            return self.text
        text = self.text.replace("_", "")
        # numbers below 2**64 have at most 20 digits; Python refuses to read integers of very many
        value = int(text) if text.isdigit() and len(text) <= 20 else float(text)
        if value == math.inf:
            raise ExpressionError(f"{self.text} is too large for a number", self.col, text=self.text)
        return value if value < 1 << 64 else float(value)


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


_CLOSING = {"": "the end of the expression", "(": "')'", "f(": "')'", "[": "']'"}


def _check_order(words: list[_Word]) -> None:
    """Raise at the first word that cannot follow those before it; how operators bind is left to Python's parser."""
    last = _Word("start", "", 0)
    brackets = [""]  # the open ones: "(" of a group, "f(" of a call, "[" of an index
    for word in words:
        if not _may_follow(word, last, brackets[-1]):
            found = f"'{word.text}'" if word.text else _CLOSING[""]
            index = brackets[-1] == "[" and last.text in ("[", ",", ":")
            wanted = (
                _CLOSING[brackets[-1]] if last.ends_value else "a whole number or ':'" if index else "a value"
            )
            raise ExpressionError(f"expected {wanted}, found {found}", word.col, text=word.text)
        if word.kind == "op" and word.text in "([":
            brackets.append(f"f{word.text}" if word.text == "(" and last.kind == "name" else word.text)
            if len(brackets) > MAX_DEPTH:
                raise ExpressionError("nested too deeply", word.col)
        elif word.kind == "op" and word.text in ")]":
            brackets.pop()
        last = word


def _may_follow(word: _Word, last: _Word, inside: str) -> bool:
    """True if the word can stand after `last` in a bracket of this kind."""
    after_value = last.ends_value
    if word.kind == "end":
        return after_value and not inside
    if word.kind != "op":
        return not after_value
    match word.text:
        case "(":
            return last.kind == "name" if after_value else inside != "["
        case ")":
            return (inside in ("(", "f(") and after_value) or (inside == "f(" and last.text == "(")
        case "]" | ",":
            return (inside == "[" and (after_value or last.text == ":")) or (inside == "f(" and after_value)
        case ":":
            return inside == "[" and (after_value or last.text in ("[", ",", ":"))
        case "+" | "-":
            return True
        case "not":
            return not after_value
    return after_value


# ------------------------------------------------------------------------- tree


def _tree(words: list[_Word]) -> ast.expr:
    """Python's tree of the words, with our names and columns in it."""
    text = ""
    at: dict[int, _Word] = {}  # where a word begins in the text for Python
    for word in words:
        at[len(text)] = word
        text += (
            "_" if word.is_name else word.text if word.kind in ("op", "end") else ascii(word.value)
        ) + " "
    try:
        root = ast.parse(text, mode="eval").body
    except SyntaxError as error:
        word = at.get((error.offset or 1) - 1, words[-1])
        raise ExpressionError(f"'{word.text}' is not understood here", word.col, text=word.text) from None
    except (RecursionError, MemoryError):
        raise ExpressionError("nested too deeply", 1) from None
    for node in list(ast.walk(root)):
        if isinstance(node, ast.expr):
            if isinstance(node, ast.Name):
                node.id = at[node.col_offset].text
            node.col_offset = _column(node, at)
    return root


def _column(node: ast.expr, at: dict[int, _Word]) -> int:
    """Where a message about the node points: at its operator, or at its beginning."""
    match node:
        case ast.BinOp(left=first) | ast.Compare(left=first) | ast.Subscript(value=first):
            end = first.end_col_offset
        case ast.BoolOp(values=[first, *_]):
            end = first.end_col_offset
        case _:
            return at[node.col_offset].col
    return next(word.col for start, word in at.items() if start >= (end or 0) and word.text != ")")


def _check_depth(root: ast.expr) -> None:
    """Raise if the tree is so deep that walking down could overflow the stack; sums and products may be long."""
    depths: dict[ast.AST, int] = {root: 1}
    for node in ast.walk(root):
        for child in ast.iter_child_nodes(node):
            depths[child] = depths[node] + (not isinstance(node, ast.BinOp) or child is not node.left)
            if depths[child] > MAX_DEPTH and isinstance(node, ast.expr):
                raise ExpressionError("nested too deeply", node.col_offset)


def _check_call(node: ast.Call) -> None:
    assert isinstance(node.func, ast.Name)  # nothing else can stand before a bracket
    name, num = node.func.id, len(node.args)
    if name not in FUNCTIONS:
        hint = allowed(name, FUNCTIONS, "functions")
        raise ExpressionError(f"there is no function {name!r}", node.col_offset, hint, name)
    low, high = SEVERAL.get(name, (1, 1))
    if not low <= num <= (high or num):
        wanted = f"{low}" if high == low else f"at least {low}"
        message = f"{name}() takes {wanted} argument{'s' * (low > 1)}, not {num}"
        raise ExpressionError(message, node.col_offset, text=name)
