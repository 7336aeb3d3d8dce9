"""Evaluate expressions over columns: one value per sample, as if each were evaluated by itself.

Numbers are computed as float64 or int64, whatever their columns hold. Where an integer of a sample does not fit int64,
the computation goes on in float64, for this sample alone; uint64 that is only compared or copied stays exact.

What cannot be computed is *undefined*: the logarithm of a negative number, the maximum of no items, anything that uses
NaN. A comparison with something undefined is undefined, too, and ``and``, ``or`` and ``not`` follow the three-valued
logic of SQL, so that a condition is true only if it is known to be. `isfinite` and `isnan` are always defined. Nothing
raises over values.

Results depend on the sample alone, not on the samples beside it. The reductions (sum, max, …) run over all of a
sample's values.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from merlin.shards.format.segments import Array, Ragged, Values, offsets_of
from merlin.shards.writing.check import BadOutput
from merlin.shards.writing.reductions import reduced
from merlin.spec.expression import CONSTANTS, ELEMENTWISE, Expression, indices

_BLOCK_BYTES = 1 << 22  # of float64, that are worked on at once
_MOST = 2**63 - 1  # of int64
_WRAPPED = 2.0**62  # integers that are so far from what float64 gives do not fit int64


class Result(Struct, frozen=True):
    """The value for each sample: float64 with NaN where undefined, int64, uint64 or bool (n, …), or ragged."""

    values: Values
    undefined: Array | None  # (n,) bool: samples for which a condition is undefined; None: there are none
    is_mixed: bool = False  # values are objects: ints of some samples, floats of others


def evaluate(expression: Expression, columns: Mapping[str, Values], num: int) -> Result:
    """Evaluate for `num` samples. Raises BadOutput where an input or a parameter is a text and has to be a number."""
    value = _value(expression, columns, num)
    data, undefined = value.data, None
    if value.is_condition:
        undefined = _sums(value, np.isnan(data)) > 0
        data = data == 1
        undefined = undefined if undefined.any() else None
    values = data if value.offsets is None else Ragged(data, value.offsets)
    return Result(values, undefined, value.is_mixed)


def is_true(expression: Expression, columns: Mapping[str, Values], num: int) -> Array:
    """(num,) bool: for which samples the condition is known to be true. Raises BadOutput as `evaluate` does."""
    return np.asarray(_truth(_value(expression, columns, num)).data == 1)


class _Value(Struct, frozen=True):
    """A value per sample, or one for all of them.

    `data` is (n, …), or (1, …) if it is the same for all samples, or (items, …) with `offsets` (n + 1,). It holds
    int64, uint64, str objects, or float64 with NaN where undefined; of a condition float64: 1 is true, 0 false.
    """

    data: Array
    offsets: Array | None = None
    is_condition: bool = False
    is_mixed: bool = False  # of the whole expression: int objects of some samples, float objects of others

    @property
    def ndim(self) -> int:
        """Axes of one sample, or of one item."""
        return self.data.ndim - 1


def _value(expression: Expression, columns: Mapping[str, Values], num: int) -> _Value:
    """The value, computed block by block of samples, so that intermediate results stay small."""
    used = {name: columns[name] for name in expression.names if name in columns}
    per_sample = sum(8.0 * _size(column) / max(1, num) for column in used.values())
    step = max(1, int(_BLOCK_BYTES / max(8.0, per_sample)))
    parts: list[tuple[Array, _Value]] = []
    with np.errstate(all="ignore"):
        for lo in range(0, max(1, num), step):
            hi = min(num, lo + step)
            block = {name: column[lo:hi] for name, column in used.items()}
            parts += [(lo + samples, part) for samples, part in _parts(expression, block, hi - lo)]
    return _joined(parts)


def _parts(expression: Expression, columns: Mapping[str, Values], num: int) -> Iterator[tuple[Array, _Value]]:
    """Samples of a block, and their values; together are those that need float64 at the same nodes."""
    waiting: list[tuple[Array, frozenset[ast.expr]]] = [(np.arange(num), frozenset())]
    while waiting:
        samples, floats = waiting.pop()
        chosen = columns
        if len(samples) < num:
            chosen = {name: column[samples] for name, column in columns.items()}
        try:
            value = _Evaluator(chosen, len(samples), floats).of(expression.root)
        except _NeedsFloat as found:
            if not found.samples.all():
                waiting.append((samples[~found.samples], floats))
            waiting.append((samples[found.samples], floats | {found.node}))
        else:
            yield samples, _spread(value, len(samples))


def _joined(parts: Sequence[tuple[Array, _Value]]) -> _Value:
    """One value of all samples, in their order."""
    values = [value for _, value in parts]
    if len(parts) == 1:
        return values[0]
    is_mixed = len({value.data.dtype for value in values}) > 1
    data = np.concatenate([value.data.astype(object) if is_mixed else value.data for value in values])
    order = np.argsort(np.concatenate([samples for samples, _ in parts]))
    lengths = [np.diff(value.offsets) for value in values if value.offsets is not None]
    if not lengths:
        return _Value(data[order], None, values[0].is_condition, is_mixed)
    items = Ragged(data, offsets_of(np.concatenate(lengths)))[order]
    return _Value(items.values, items.offsets, values[0].is_condition, is_mixed)


def _size(column: Values) -> int:
    return column.items.size if isinstance(column, Ragged) else column.size


def _spread(value: _Value, num: int) -> _Value:
    """The value with an entry for each sample, even if it is the same for all."""
    if value.offsets is not None or len(value.data) == num:
        return value
    return replace(value, data=np.repeat(value.data, num, axis=0))


class _NeedsFloat(Exception):
    """The integers of some `samples` (n,) do not fit int64 at a node."""

    def __init__(self, node: ast.expr, samples: Array) -> None:
        super().__init__()
        self.node, self.samples = node, samples


class _Evaluator:
    """Some samples, for which the values of the nodes `floats` are float64. Raises _NeedsFloat for any other."""

    def __init__(self, columns: Mapping[str, Values], num: int, floats: frozenset[ast.expr]) -> None:
        self._columns = columns
        self._num = num
        self._floats = floats

    def of(self, node: ast.expr) -> _Value:
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return _constant(value)
            case ast.Name():
                return self._name(node.id)
            case ast.UnaryOp(op=ast.Not()):
                return _not(_truth(self.of(node.operand)))
            case ast.UnaryOp():
                number = self._number(node.operand)
                return self._whole(node, np.negative, number) if isinstance(node.op, ast.USub) else number
            case ast.BinOp():
                operands = self._together([self._number(node.left), self._number(node.right)])
                return self._whole(node, _ARITHMETIC[type(node.op)], *operands)
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
            return _as_value(name, column.items, column.offsets - column.offsets[0])
        return _as_value(name, column)

    def _number(self, node: ast.expr) -> _Value:
        return self._signed(_number(self.of(node), node), node)

    def _signed(self, number: _Value, node: ast.expr) -> _Value:
        """int64 or float64, of any number."""
        if number.data.dtype.kind != "u":
            return number
        if node in self._floats:
            return replace(number, data=number.data.astype(np.float64))
        self._require_int64(node, number.data > np.uint64(_MOST), number.offsets)
        return replace(number, data=number.data.astype(np.int64))

    def _whole(self, node: ast.expr, function: Callable[..., Array], *operands: _Value) -> _Value:
        """A function's value, which is int64 where its operands are and where it fits, else float64."""
        arrays = [operand.data for operand in operands]
        floats = [array.astype(np.float64, copy=False) for array in arrays]
        offsets = operands[0].offsets
        if node in self._floats:
            return _Value(function(*floats), offsets)
        found = function(*arrays)
        if found.dtype.kind == "i":  # a wrong one is off by a multiple of 2**64
            self._require_int64(node, np.abs(function(*floats) - found) > _WRAPPED, offsets)
        return _Value(found, offsets)

    def _require_int64(self, node: ast.expr, is_beyond: Array, offsets: Array | None) -> None:
        """Raise _NeedsFloat for the samples with a value that is beyond int64."""
        if is_beyond.any():
            samples = _sums(_Value(is_beyond, offsets), is_beyond) > 0
            raise _NeedsFloat(node, np.broadcast_to(samples, (self._num,)))

    def _compare(self, node: ast.Compare) -> _Value:
        values = [self.of(operand) for operand in (node.left, *node.comparators)]
        pairs = []
        for op, left, right in zip(node.ops, values, values[1:], strict=False):
            a, b = self._together(_comparable(left, right, node))
            found = _condition(_COMPARISONS[type(op)](a.data, b.data), a.offsets)
            for one in (a.data, b.data):
                if one.dtype.kind == "f":
                    found.data[np.broadcast_to(np.isnan(one), found.data.shape)] = np.nan
            pairs.append(found)
        return reduce(_and, self._together(pairs))

    def _together(self, values: list[_Value]) -> list[_Value]:
        """Make arrays broadcast: they get equally many axes, and one entry for each item if one is ragged."""
        offsets = next((value.offsets for value in values if value.offsets is not None), None)
        if offsets is not None:
            values = [self._for_items(value, offsets) for value in values]
        ndim = max(value.ndim for value in values)
        return [replace(value, data=_with_axes(value.data, ndim)) for value in values]

    def _for_items(self, value: _Value, offsets: Array) -> _Value:
        data = value.data
        if value.offsets is None and (len(data) != 1 or self._num == 1):
            data = np.repeat(data, np.diff(offsets), axis=0)
        return _Value(data, offsets, value.is_condition)

    def _call(self, name: str, node: ast.Call) -> _Value:
        if name == "len":
            return self._len(self.of(node.args[0]), node)
        if name == "any":
            return _any(_truth(self.of(node.args[0])))
        if name == "all":
            return _not(_any(_not(_truth(self.of(node.args[0])))))
        if name == "where":
            return self._where(node)
        values = [self._number(argument) for argument in node.args]
        if name == "abs":
            return self._whole(node, np.abs, values[0])
        if name == "sum":
            data, offsets = values[0].data, values[0].offsets
            return self._whole(node, lambda array: reduced(name, array, offsets), _Value(data))
        if name in ELEMENTWISE:
            found = _FUNCTIONS[name](values[0].data)
            return (_condition if found.dtype == bool else _Value)(found, values[0].offsets)
        if len(values) == 1:
            return _Value(reduced(name, values[0].data, values[0].offsets))
        values = self._together(values)
        return _Value(_combined(name, [value.data for value in values]), values[0].offsets)

    def _where(self, node: ast.Call) -> _Value:
        """The choice between two conditions is a condition, too; any other choice is a number."""
        condition = _truth(self.of(node.args[0]))
        choices = [self.of(argument) for argument in node.args[1:]]
        is_condition = all(choice.is_condition for choice in choices)
        if not is_condition:
            pairs = zip(choices, node.args[1:], strict=True)
            choices = [self._signed(_number(choice, argument), argument) for choice, argument in pairs]
        condition, a, b = self._together([condition, *choices])
        data = np.where(condition.data == 1, a.data, b.data)
        undefined = np.isnan(condition.data)
        if undefined.any():
            data = data.astype(np.float64)
            data[np.broadcast_to(undefined, data.shape)] = np.nan
        return _Value(data, condition.offsets, is_condition)

    def _len(self, value: _Value, node: ast.Call) -> _Value:
        if value.offsets is not None:
            return _Value(np.diff(value.offsets))
        if not value.ndim:
            raise BadOutput(f"len() of a single value, column {node.col_offset}")
        return _Value(np.full(len(value.data), value.data.shape[1], np.int64))


# ------------------------------------------------------------------------ values


def _constant(value: bool | float | str) -> _Value:
    if isinstance(value, bool):
        return _condition(np.array([value]))
    if isinstance(value, int):
        return _Value(np.array([value], np.int64 if value <= _MOST else np.uint64))
    return _Value(np.array([value], object if isinstance(value, str) else np.float64))


def _condition(mask: Array, offsets: Array | None = None) -> _Value:
    return _Value(np.asarray(mask, dtype=np.float64), offsets, True)


def _as_value(name: str, data: Array, offsets: Array | None = None) -> _Value:
    kind = data.dtype.kind
    if kind == "b":
        return _condition(data, offsets)
    if kind in "US":
        data = data.astype(str).astype(object)
    elif kind in "iuf":
        is_uint64 = kind == "u" and data.dtype.itemsize == 8
        data = data.astype(np.float64 if kind == "f" else np.uint64 if is_uint64 else np.int64)
    elif kind != "O":
        raise BadOutput(f"'{name}' holds {data.dtype.name}, which expressions cannot use")
    return _Value(data, offsets)


def _number(value: _Value, node: ast.expr) -> _Value:
    """int64, uint64 or float64; what is undefined becomes NaN."""
    data = value.data
    if data.dtype.kind == "O":
        what = f"'{node.id}'" if isinstance(node, ast.Name) else f"column {node.col_offset}"
        raise BadOutput(f"{what} is a text, and a number is needed")
    if value.is_condition and not np.isnan(data).any():
        data = data.astype(np.int64)
    return _Value(data, value.offsets)


def _truth(value: _Value) -> _Value:
    if not value.is_condition:
        raise BadOutput("a condition is needed, and this is none; compare it with something")
    return value


def _comparable(a: _Value, b: _Value, node: ast.Compare) -> list[_Value]:
    """Two texts, or two numbers."""
    texts = [value.data.dtype.kind == "O" for value in (a, b)]
    if all(texts):
        return [a, b]
    if any(texts):
        raise BadOutput(f"column {node.col_offset}: compares a text with a number")
    return [_number(a, node), _number(b, node)]


def _with_axes(data: Array, ndim: int) -> Array:
    """Insert axes of length 1 after that of the samples, so that the last axes match, as in NumPy."""
    return data.reshape(len(data), *(1,) * (ndim - data.ndim + 1), *data.shape[1:])


def _indexed(value: _Value, items: tuple[int | slice, ...]) -> _Value:
    if value.offsets is not None:  # the first index is ":", as the items of samples have no common index
        items = items[1:]
    return replace(value, data=value.data[(slice(None), *items)])


# ------------------------------------------------------------------------- logic


def _not(a: _Value) -> _Value:
    return replace(a, data=1 - a.data)


def _and(a: _Value, b: _Value) -> _Value:
    return replace(a, data=np.where((a.data == 0) | (b.data == 0), 0.0, np.minimum(a.data, b.data)))


def _or(a: _Value, b: _Value) -> _Value:
    return replace(a, data=np.where((a.data == 1) | (b.data == 1), 1.0, np.maximum(a.data, b.data)))


def _any(value: _Value) -> _Value:
    """True if any of a sample's values is; undefined if undefined values could decide."""
    unknown = np.where(_sums(value, np.isnan(value.data)) > 0, np.nan, 0.0)
    return _Value(np.where(_sums(value, value.data == 1) > 0, 1.0, unknown), is_condition=True)


def _sums(value: _Value, marks: Array) -> Array:
    """(n,) how many of each sample's values are marked."""
    return reduced("sum", marks.astype(np.int64), value.offsets)


# -------------------------------------------------------------------- arithmetic


def _floats(function: Callable[..., Any]) -> Callable[..., Array]:
    """The function applied to float64.

    With whole numbers, division by zero would give 0, and negative powers would not work.
    """

    def apply(*arrays: Array) -> Array:
        return np.asarray(function(*(array.astype(np.float64, copy=False) for array in arrays)))

    return apply


_ARITHMETIC: dict[type[ast.AST], Callable[..., Array]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: _floats(np.divide),
    ast.FloorDiv: _floats(np.floor_divide),
    ast.Mod: _floats(np.remainder),
    ast.Pow: _floats(np.power),
}
_COMPARISONS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
_FUNCTIONS: dict[str, Callable[..., Array]] = {
    name: np.sign if name == "sign" else _floats(getattr(np, name)) for name in ELEMENTWISE - {"abs"}
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
