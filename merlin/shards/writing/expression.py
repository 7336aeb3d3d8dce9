"""Evaluate expressions over whole columns: one value per sample, as if each were evaluated by itself.

Numbers are computed as float64 or int64, whatever their columns hold. What cannot be computed is *undefined*: the
logarithm of a negative number, the maximum of no items, anything that uses NaN. A comparison with something
undefined is undefined, too, and ``and``, ``or`` and ``not`` follow the three-valued logic of SQL, so that a condition
is true only if it is known to be. `isfinite` and `isnan` are always defined. Nothing raises over values.

Results depend on the sample alone, not on the samples beside it. The reductions (sum, max, …) run over all of a
sample's values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from merlin.shards.format.segments import Ragged, Values
from merlin.shards.writing.check import BadOutput
from merlin.spec.expression import CONSTANTS, ELEMENTWISE, OPERATORS, Expression, indices

Array = np.ndarray[Any, Any]

_BLOCK_BYTES = 1 << 22  # of float64, that are worked on at once


@dataclass(frozen=True, slots=True)
class Result:
    """The value for each sample: float64 with NaN where undefined, int64 or bool (n, …), or ragged."""

    values: Values
    undefined: Array | None  # (n,) bool: samples for which a condition is undefined; None: there are none


def evaluate(expression: Expression, columns: Mapping[str, Values], num: int) -> Result:
    """Evaluate for `num` samples. Raises BadOutput where an input or a parameter is a text and has to be a number."""
    parts = _blocks(expression, columns, num)
    if not parts:
        return Result(np.zeros(0), None)
    undefined = None
    if any(part.undefined is not None for part in parts):
        undefined = np.concatenate([_undefined_samples(part) for part in parts])
    data = np.concatenate([part.data for part in parts])
    if parts[0].offsets is None:
        return Result(data, undefined)
    lengths = [np.diff(part.offsets) for part in parts if part.offsets is not None]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(lengths))])
    return Result(Ragged(data, offsets), undefined)


def is_true(expression: Expression, columns: Mapping[str, Values], num: int) -> Array:
    """(num,) bool: for which samples the condition is known to be true. Raises BadOutput as `evaluate` does."""
    parts = [_truth(value).data for value in _blocks(expression, columns, num)]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=bool)


@dataclass(frozen=True, slots=True)
class _Value:
    """A value per sample, or one for all of them.

    `data` is (n, …), or (1, …) if it is the same for all samples, or (items, …) with `offsets` (n + 1,). It holds
    float64 (NaN where undefined), int64, bool (False where undefined) or str objects. `undefined` is a mask of
    bool data, None if all is known.
    """

    data: Array
    undefined: Array | None = None
    offsets: Array | None = None

    @property
    def ndim(self) -> int:
        """Axes of one sample, or of one item."""
        return self.data.ndim - 1


def _blocks(expression: Expression, columns: Mapping[str, Values], num: int) -> list[_Value]:
    """The value, block of samples by block, so that intermediate results stay small."""
    used = {name: columns[name] for name in expression.names if name in columns}
    per_sample = sum(8.0 * _size(column) / max(1, num) for column in used.values())
    step = max(1, int(_BLOCK_BYTES / max(8.0, per_sample)))
    found = []
    with np.errstate(all="ignore"):
        for lo in range(0, num, step):
            hi = min(num, lo + step)
            block = {name: _cut(column, lo, hi) for name, column in used.items()}
            found.append(_spread(_Evaluator(block, hi - lo).of(expression.root), hi - lo))
    return found


def _undefined_samples(value: _Value) -> Array:
    """(n,) bool"""
    if value.undefined is None:
        return np.zeros(len(value.data) if value.offsets is None else len(value.offsets) - 1, dtype=bool)
    return _counted(value, value.undefined) > 0


def _size(column: Values) -> int:
    return column.items.size if isinstance(column, Ragged) else column.size


def _cut(column: Values, lo: int, hi: int) -> Values:
    return column.rows(lo, hi) if isinstance(column, Ragged) else column[lo:hi]


def _spread(value: _Value, num: int) -> _Value:
    """With an entry for each sample, also where it is the same for all."""
    if value.offsets is not None or len(value.data) == num:
        return value
    data = np.repeat(value.data, num, axis=0)
    return _Value(data, None if value.undefined is None else np.repeat(value.undefined, num, axis=0))


class _Evaluator:
    """One block of samples."""

    def __init__(self, columns: Mapping[str, Values], num: int) -> None:
        self._columns = columns
        self._num = num

    def of(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return _constant(value)
            case ast.Name():
                return self._name(node.id)
            case ast.UnaryOp():
                return self._unary(node)
            case ast.BinOp():
                a, b = self._together([self._number(node.left), self._number(node.right)])
                return _Value(_ARITHMETIC[OPERATORS[type(node.op)]](a.data, b.data), None, a.offsets)
            case ast.Compare():
                return self._compare(node)
            case ast.BoolOp():
                combine = _and if isinstance(node.op, ast.And) else _or
                return reduce(combine, self._together([_truth(self.of(one)) for one in node.values]))
            case ast.Subscript():
                return _indexed(self.of(node.value), indices(node))
            case ast.Call(func=ast.Name(id=name)):
                return self._call(name, node)
        raise TypeError(f"{type(node).__name__} in an expression")

    def _name(self, name: str) -> _Value:
        column = self._columns.get(name)
        if column is None:
            return _constant(CONSTANTS[name])
        if isinstance(column, Ragged):
            return _Value(_as_values(name, column.items), None, column.offsets - column.offsets[0])
        return _Value(_as_values(name, column))

    def _number(self, node: ast.expr) -> _Value:
        return _number(self.of(node), node)

    def _unary(self, node: ast.UnaryOp) -> _Value:
        if isinstance(node.op, ast.Not):
            value = _truth(self.of(node.operand))
            data = ~value.data if value.undefined is None else ~value.data & ~value.undefined
            return _Value(data, value.undefined, value.offsets)
        value = self._number(node.operand)
        return _Value(-value.data if isinstance(node.op, ast.USub) else value.data, None, value.offsets)

    def _compare(self, node: ast.Compare) -> _Value:
        values = [self.of(operand) for operand in (node.left, *node.comparators)]
        pairs = []
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            a, b = self._together(_comparable(left, right, node))
            data = np.asarray(_COMPARISONS[OPERATORS[type(op)]](a.data, b.data), dtype=bool)
            undefined = _is_nan(a.data) | _is_nan(b.data)
            if undefined.any():
                undefined = np.broadcast_to(undefined, data.shape)
                pairs.append(_Value(data & ~undefined, undefined, a.offsets))
            else:
                pairs.append(_Value(data, None, a.offsets))
        return reduce(_and, self._together(pairs))

    def _together(self, values: list[_Value]) -> list[_Value]:
        """Values whose arrays broadcast: with as many axes, and repeated for each item if one is ragged."""
        offsets = next((value.offsets for value in values if value.offsets is not None), None)
        if offsets is not None:
            lengths = np.diff(offsets)
            values = [self._for_items(value, lengths, offsets) for value in values]
        ndim = max(value.ndim for value in values)
        if all(value.ndim == ndim for value in values):
            return values
        return [
            _Value(
                _with_axes(value.data, ndim),
                None if value.undefined is None else _with_axes(value.undefined, ndim),
                value.offsets,
            )
            for value in values
        ]

    def _for_items(self, value: _Value, lengths: Array, offsets: Array) -> _Value:
        if value.offsets is not None or (len(value.data) == 1 and self._num != 1):
            return _Value(value.data, value.undefined, offsets)
        undefined = None if value.undefined is None else np.repeat(value.undefined, lengths, axis=0)
        return _Value(np.repeat(value.data, lengths, axis=0), undefined, offsets)

    def _call(self, name: str, node: ast.Call) -> _Value:
        if name == "len":
            return self._len(self.of(node.args[0]), node)
        if name in ("any", "all"):
            return _any_or_all(_truth(self.of(node.args[0])), name == "any")
        if name == "where":
            chosen = self._together(
                [
                    _truth(self.of(node.args[0])),
                    *(self._either(one) for one in node.args[1:]),
                ]
            )
            return _where(*chosen)
        values = [self._number(argument) for argument in node.args]
        if len(values) == 1:
            if name in ELEMENTWISE:
                return _Value(_FUNCTIONS[name](values[0].data), None, values[0].offsets)
            return _reduced(name, values[0])
        values = self._together(values)
        return _Value(_combined(name, [value.data for value in values]), None, values[0].offsets)

    def _either(self, node: ast.expr) -> _Value:
        """A truth value as it is, anything else as a number."""
        value = self.of(node)
        return value if value.data.dtype == bool and value.undefined is None else _number(value, node)

    def _len(self, value: _Value, node: ast.Call) -> _Value:
        if value.offsets is not None:
            return _Value(np.diff(value.offsets))
        if not value.ndim:
            raise BadOutput(f"len() of a single value, column {node.col_offset}")
        return _Value(np.full(len(value.data), value.data.shape[1], np.int64))


# ------------------------------------------------------------------------ values


def _constant(value: bool | float | str) -> _Value:
    dtype = {bool: bool, int: np.int64, str: object}.get(type(value), np.float64)
    return _Value(np.array([value], dtype=dtype))


def _as_values(name: str, data: Array) -> Array:
    match data.dtype.kind:
        case "b" | "O":
            return data
        case "U" | "S":
            return data.astype(str).astype(object)
        case "i":
            return data.astype(np.int64)
        case "u":
            return data.astype(np.int64 if data.dtype.itemsize < 8 else np.float64)
        case "f":
            return data.astype(np.float64)
    raise BadOutput(f"'{name}' holds {data.dtype.name}, which expressions cannot use")


def _number(value: _Value, node: ast.expr) -> _Value:
    """int64 or float64; what is undefined becomes NaN."""
    data = value.data
    if data.dtype.kind == "O":
        what = f"'{node.id}'" if isinstance(node, ast.Name) else f"column {node.col_offset}"
        raise BadOutput(f"{what} is a text, and a number is needed")
    if value.undefined is not None:
        data = data.astype(np.float64)
        data[value.undefined] = np.nan
    elif data.dtype == bool:
        data = data.astype(np.int64)
    return _Value(data, None, value.offsets)


def _truth(value: _Value) -> _Value:
    if value.data.dtype != bool:
        raise BadOutput("a condition is needed, and this is none; compare it with something")
    return value


def _is_nan(data: Array) -> Array:
    return np.isnan(data) if data.dtype.kind == "f" else np.zeros(1, dtype=bool).reshape((1,) * data.ndim)


def _comparable(a: _Value, b: _Value, node: ast.Compare) -> list[_Value]:
    """Two texts, or two numbers."""
    texts = [value.data.dtype.kind == "O" for value in (a, b)]
    if all(texts):
        return [a, b]
    if any(texts):
        raise BadOutput(f"column {node.col_offset}: compares a text with a number")
    return [_number(a, node), _number(b, node)]


def _with_axes(data: Array, ndim: int) -> Array:
    """Axes of length 1 after the samples', so that the last axes meet, as NumPy's rule has it."""
    return data.reshape(len(data), *(1,) * (ndim - data.ndim + 1), *data.shape[1:])


def _indexed(value: _Value, items: tuple[int | slice, ...]) -> _Value:
    if value.offsets is not None:  # the first index is ":", as the items of samples have no common index
        items = items[1:]
    keep = (slice(None), *items)
    undefined = None if value.undefined is None else value.undefined[keep]
    return _Value(value.data[keep], undefined, value.offsets)


# ------------------------------------------------------------------------- logic


def _and(a: _Value, b: _Value) -> _Value:
    true = a.data & b.data
    if a.undefined is None and b.undefined is None:
        return _Value(true, None, a.offsets)
    return _Value(true, ~(true | _is_false(a) | _is_false(b)), a.offsets)


def _or(a: _Value, b: _Value) -> _Value:
    true = a.data | b.data
    if a.undefined is None and b.undefined is None:
        return _Value(true, None, a.offsets)
    return _Value(true, ~(true | (_is_false(a) & _is_false(b))), a.offsets)


def _is_false(value: _Value) -> Array:
    return ~value.data if value.undefined is None else ~(value.data | value.undefined)


def _any_or_all(value: _Value, is_any: bool) -> _Value:
    """Over all of a sample's values; undefined if what is undefined could decide."""
    true = _counted(value, value.data)
    undefined = np.zeros_like(true) if value.undefined is None else _counted(value, value.undefined)
    false = _counted(value, _is_false(value))
    if is_any:
        return _with_mask(true > 0, (undefined > 0) & (true == 0))
    return _with_mask((undefined == 0) & (false == 0), (undefined > 0) & (false == 0))


def _with_mask(data: Array, undefined: Array) -> _Value:
    return _Value(data, undefined if undefined.any() else None)


def _counted(value: _Value, marks: Array) -> Array:
    """How many of each sample's values are marked."""
    flat = _flat(marks).sum(axis=1, dtype=np.int64)
    if value.offsets is None:
        return np.asarray(flat)
    sums = np.concatenate([np.zeros(1, np.int64), np.cumsum(flat)])
    return np.asarray(np.diff(sums[value.offsets]))


def _flat(data: Array) -> Array:
    """(n, everything else); `reshape` alone cannot tell how much that is of no samples."""
    return data.reshape(len(data), int(np.prod(data.shape[1:], dtype=np.int64)))


def _where(condition: _Value, a: _Value, b: _Value) -> _Value:
    if a.data.dtype != b.data.dtype or condition.undefined is not None:
        kinds = {a.data.dtype.kind, b.data.dtype.kind}
        dtype = np.float64 if "f" in kinds or condition.undefined is not None else np.int64
        a, b = _Value(a.data.astype(dtype)), _Value(b.data.astype(dtype))
    data = np.where(condition.data, a.data, b.data)
    if condition.undefined is not None:
        data[np.broadcast_to(condition.undefined, data.shape)] = np.nan
    return _Value(data, None, condition.offsets)


# -------------------------------------------------------------------- arithmetic


def _floats(function: Callable[..., Any]) -> Callable[..., Array]:
    """The function of float64; whole numbers would divide by zero as if that were 0, and not know negative powers."""

    def apply(*arrays: Array) -> Array:
        return np.asarray(function(*(array.astype(np.float64, copy=False) for array in arrays)))

    return apply


_ARITHMETIC: dict[str, Callable[..., Array]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": _floats(np.divide),
    "//": _floats(np.floor_divide),
    "%": _floats(np.remainder),
    "**": _floats(np.power),
}
_COMPARISONS: dict[str, Callable[..., Any]] = {
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
    "==": np.equal,
    "!=": np.not_equal,
}
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    name: np.abs if name == "abs" else np.sign if name == "sign" else _floats(getattr(np, name))
    for name in ELEMENTWISE
}
_PAIRS: dict[str, Callable[..., Array]] = {
    "min": np.minimum,
    "max": np.maximum,
    "arctan2": _floats(np.arctan2),
    "hypot": _floats(np.hypot),
}


def _combined(name: str, arrays: list[Array]) -> Array:
    """min, max, clip, arctan2 and hypot of arrays that broadcast; NaN if one of them is."""
    if name == "clip":
        return np.minimum(np.maximum(arrays[0], arrays[1]), arrays[2])
    return reduce(_PAIRS[name], arrays)


def _reduced(name: str, value: _Value) -> _Value:
    if value.offsets is None:
        flat = _flat(np.ascontiguousarray(value.data))
        if flat.shape[1]:
            return _Value(_REDUCE[name](flat))
        return _Value(np.full(len(flat), 0.0 if name == "sum" else np.nan))
    per_item = int(np.prod(value.data.shape[1:], dtype=np.int64))
    return _Value(
        _reduced_items(name, np.ascontiguousarray(value.data).reshape(-1), value.offsets * per_item)
    )


_REDUCE: dict[str, Callable[[Array], Array]] = {
    "sum": lambda flat: flat.sum(axis=1),
    "mean": lambda flat: flat.astype(np.float64, copy=False).sum(axis=1) / flat.shape[1],
    "std": lambda flat: flat.astype(np.float64, copy=False).std(axis=1),
    "min": lambda flat: flat.min(axis=1),
    "max": lambda flat: flat.max(axis=1),
}


def _reduced_items(name: str, flat: Array, offsets: Array) -> Array:
    """One number per sample; of no items the sum is 0, and everything else is undefined."""
    lengths = np.diff(offsets)
    some = lengths > 0
    starts = offsets[:-1][some]
    if name in ("min", "max"):
        found = np.full(len(lengths), np.nan) if flat.dtype.kind == "f" or not some.all() else None
        reduced = getattr(np, f"{name}imum").reduceat(flat, starts) if len(starts) else flat[:0]
        if found is None:
            return np.asarray(reduced)
        found[some] = reduced
        return found
    if name == "sum":
        total = np.zeros(len(lengths), flat.dtype)
        total[some] = np.add.reduceat(flat, starts) if len(starts) else 0
        return total
    wide = flat.astype(np.float64, copy=False)
    mean = np.full(len(lengths), np.nan)
    mean[some] = (np.add.reduceat(wide, starts) if len(starts) else wide[:0]) / lengths[some]
    if name == "mean":
        return mean
    deviations = wide - np.repeat(mean, lengths)
    spread = np.full(len(lengths), np.nan)
    squares = np.add.reduceat(deviations * deviations, starts) if len(starts) else wide[:0]
    spread[some] = np.sqrt(squares / lengths[some])
    return spread
