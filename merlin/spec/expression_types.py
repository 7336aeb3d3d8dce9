"""The type of an expression's value, from the types of its names: a kind of number, and the shape for one sample."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.document.findings import allowed
from merlin.spec.expression import CONSTANTS, OPERATORS, REDUCTIONS, Expression, ExpressionError, indices

# any: known only when the samples are read
Kind = Literal["bool", "int", "float", "complex", "text", "any"]

# a kind of number holds those of its rank and below; what is not known may be a float
RANKS: dict[Kind, int] = {"bool": 0, "int": 1, "float": 2, "any": 2, "complex": 3}

# the narrowest kind that an operator or a function gives; of all others: float
_NARROWEST: dict[str, Kind] = {
    "where": "bool",
    **dict.fromkeys(("+", "-", "*", "abs", "sign", "sum", "min", "max", "clip"), "int"),
}

Shape = tuple[int | None, ...]  # None comes first: as many items as the sample has


class ValueType(Struct, frozen=True):
    """`items` names what is counted by an axis of variable length; only values that count the same combine."""

    kind: Kind
    shape: Shape = ()
    items: str = ""

    @property
    def ragged(self) -> bool:
        return bool(self.shape) and self.shape[0] is None

    @property
    def is_number(self) -> bool:
        return self.kind != "text"

    def __str__(self) -> str:
        words = {"bool": "true or false", "int": "a whole number", "float": "a number", "any": "a value"}
        if not self.shape:
            return words.get(self.kind, "a text")
        shape = ", ".join("*" if n is None else str(n) for n in self.shape)
        return f"values of shape [{shape}]"


def type_of(expression: Expression, names: Mapping[str, ValueType]) -> ValueType:
    """The type of the value. Raises ExpressionError for unknown names and for operands that do not fit."""
    return _Typer(names).of(expression.root)


def expect_condition(expression: Expression, found: ValueType) -> None:
    """Raise unless the value can be true or false for a sample."""
    if found.shape:
        hint = "say how many have to be: all(…) or any(…)"
        raise ExpressionError(f"has to be true or false for a sample, not {found}", 1, hint)
    if found.kind != "bool":
        hint = f"compare it, e.g. {expression.text} > 0" if found.is_number else "compare it with =="
        raise ExpressionError(f"has to be true or false for a sample, not {found}", 1, hint)


class _Typer:
    def __init__(self, names: Mapping[str, ValueType]) -> None:
        self._names = names

    def of(self, node: ast.expr) -> ValueType:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return _constant(value)
            case ast.Name():
                return self._name(node)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BinOp():
                return self._binary(node)
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp():
                return self._logic(node)
            case ast.Subscript():
                return _indexed(node, self.of(node.value))
            case ast.Call(func=ast.Name(id=name)):
                return self._call(name, node)
        raise TypeError(f"{type(node).__name__} in an expression")

    def _name(self, node: ast.Name) -> ValueType:
        found = self._names.get(node.id)
        if found is not None:
            if found.kind == "complex":
                message = f"{node.id!r} is complex, and expressions are about real numbers"
                raise ExpressionError(message, node.col_offset, text=node.id)
            return found
        if node.id in CONSTANTS:
            return _constant(CONSTANTS[node.id])
        hint = allowed(node.id, self._names, "known names")
        raise ExpressionError(f"{node.id!r} is no field, input or parameter", node.col_offset, hint, node.id)

    def _unary(self, node: ast.UnaryOp) -> ValueType:
        inner = self.of(node.operand)
        if isinstance(node.op, ast.Not):
            return _truth(inner, node.operand)
        inner = _number(inner, node)
        return replace(inner, kind=_kind("-", [inner]))

    def _binary(self, node: ast.BinOp) -> ValueType:
        a, b = _number(self.of(node.left), node), _number(self.of(node.right), node)
        op = OPERATORS[type(node.op)]
        return replace(_together(a, b, node.col_offset, op), kind=_kind(op, [a, b]))

    def _compare(self, node: ast.Compare) -> ValueType:
        both = a = self.of(node.left)
        for operator, operand in zip(node.ops, node.comparators, strict=True):
            op, b = OPERATORS[type(operator)], self.of(operand)
            if "text" in (a.kind, b.kind):
                if not {a.kind, b.kind} <= {"text", "any"}:
                    other = b if a.kind == "text" else a
                    raise ExpressionError(f"compares a text with {other}", node.col_offset)
                if op not in ("==", "!="):
                    raise ExpressionError(
                        f"texts have no order, so {op} means nothing", node.col_offset, "", op
                    )
            both = _together(both, b, node.col_offset, op)
            a = b
        return replace(both, kind="bool")

    def _logic(self, node: ast.BoolOp) -> ValueType:
        both, *others = [_truth(self.of(operand), operand) for operand in node.values]
        for other in others:
            both = _together(both, other, node.col_offset, OPERATORS[type(node.op)])
        return replace(both, kind="bool")

    def _call(self, name: str, node: ast.Call) -> ValueType:
        found = [self.of(argument) for argument in node.args]
        if name == "len":
            if not found[0].shape and found[0].kind != "any":
                raise ExpressionError("len() needs a value with axes", node.col_offset, text="len")
            return ValueType("int")
        if name in ("any", "all", "where"):
            _truth(found[0], node.args[0])
        if name in ("any", "all"):
            return ValueType("bool")
        found = [_number(one, node) for one in found]
        kind = _kind(name, found[1:] if name == "where" else found)
        if name in ("min", "max") and len(found) == 1:
            return ValueType("any" if found[0].kind == "any" else kind)
        if name in REDUCTIONS:
            return ValueType(kind)
        both = found[0]
        for other in found[1:]:
            both = _together(both, other, node.col_offset, f"{name}()")
        return replace(both, kind=kind)


def _constant(value: bool | float | str) -> ValueType:
    kinds: dict[type, Kind] = {bool: "bool", int: "int", str: "text"}
    return ValueType(kinds.get(type(value), "float"))


def _kind(name: str, operands: Iterable[ValueType]) -> Kind:
    """The kind of number that an operator or a function gives."""
    if name in ("isfinite", "isnan"):
        return "bool"
    widest = max(RANKS[kind] for kind in (_NARROWEST.get(name, "float"), *(one.kind for one in operands)))
    kinds: tuple[Kind, ...] = ("bool", "int", "float")
    return kinds[widest]


def _number(found: ValueType, node: ast.expr) -> ValueType:
    if found.kind == "text":
        raise ExpressionError("a text can only be compared with == and !=", node.col_offset)
    return found


def _truth(found: ValueType, node: ast.expr) -> ValueType:
    if found.kind != "bool":
        raise ExpressionError(
            f"has to be true or false, not {found}", node.col_offset, "compare it with something"
        )
    return found


def _together(a: ValueType, b: ValueType, col: int, op: str) -> ValueType:
    """Shape of an operation element by element: as NumPy's, axes counted from the last."""
    if a.ragged and b.ragged and a.items != b.items:
        message = f"{op} needs as many items on both sides, and {a.items!r} and {b.items!r} differ in theirs"
        raise ExpressionError(message, col, "reduce them first, e.g. with sum(…) or max(…)", op)
    most = max(len(a.shape), len(b.shape))
    left, right = ((1,) * (most - len(one.shape)) + one.shape for one in (a, b))
    fits = all(m == n or 1 in (m, n) for m, n in zip(left, right, strict=True))
    if a.ragged or b.ragged:  # what has no items of its own counts for each item, and has fewer axes
        fits = fits and all(one.ragged == (len(one.shape) == most) for one in (a, b))
    if not fits:
        raise ExpressionError(f"{op} cannot combine {a} and {b}", col, text=op)
    shape = tuple(n if m == 1 else m for m, n in zip(left, right, strict=True))
    return ValueType("float", shape, a.items or b.items)


def _indexed(node: ast.Subscript, found: ValueType) -> ValueType:
    items, col = indices(node), node.col_offset
    if not found.shape:
        raise ExpressionError(f"[…] needs a value with axes, this is {found}", col, text="[")
    if len(items) > len(found.shape):
        raise ExpressionError(f"{len(items)} indices for {found}", col, text="[")
    shape: list[int | None] = []
    for item, size in zip(items, found.shape, strict=False):
        if size is None:
            if item != slice(None):
                message = "each sample has its own number of items, so they have no common index"
                raise ExpressionError(message, col, "write : for this axis, or reduce, e.g. max(…)", "[")
            shape.append(None)
        elif isinstance(item, slice):
            shape.append(len(range(*item.indices(size))))
        elif not -size <= item < size:
            raise ExpressionError(f"index {item} is outside an axis of {size}", col, text="[")
    return replace(found, shape=(*shape, *found.shape[len(items) :]))
