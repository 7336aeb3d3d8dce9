"""Expressions over columns give what each would give for its sample alone."""

from __future__ import annotations

import ast
import math
from functools import reduce

import numpy as np
import pytest
from effort import repeats
from hypothesis import given, settings
from hypothesis import strategies as st

from merlin.shards.format.segments import Ragged
from merlin.shards.writing.check import BadOutput
from merlin.shards.writing.expression import evaluate, is_true
from merlin.spec.expression import ELEMENTWISE, OPERATORS, REDUCTIONS, ExpressionError, parse
from merlin.spec.expression_types import ValueType, type_of

UNDEFINED = None


def by_itself(node, sample):
    """A condition is True, False or None (undefined), a number a float or an int; in plain Python."""
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return sample[node.id]
        case ast.UnaryOp(op=ast.Not()):
            inner = by_itself(node.operand, sample)
            return None if inner is None else not inner
        case ast.UnaryOp():
            return -number(node.operand, sample)
        case ast.BinOp():
            return arithmetic(OPERATORS[type(node.op)], number(node.left, sample), number(node.right, sample))
        case ast.Compare():
            values = [number(one, sample) for one in (node.left, *node.comparators)]
            ops = [OPERATORS[type(op)] for op in node.ops]
            return all_of([compared(op, a, b) for op, a, b in zip(ops, values, values[1:], strict=False)])
        case ast.BoolOp(op=ast.And()):
            return all_of([by_itself(one, sample) for one in node.values])
        case ast.BoolOp():
            return any_of([by_itself(one, sample) for one in node.values])
        case ast.Call():
            return called(node, sample)
    raise AssertionError(node)


def number(node, sample):
    value = by_itself(node, sample)
    if value is None:
        return math.nan
    return int(value) if isinstance(value, bool) else value


def compared(op, a, b):
    if math.isnan(a) or math.isnan(b):
        return None
    return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b, "==": a == b, "!=": a != b}[op]


def all_of(values):
    return False if False in values else None if None in values else True


def any_of(values):
    return True if True in values else None if None in values else False


def arithmetic(op, a, b):
    if op in "+-*":
        return {"+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b}[op]()
    with np.errstate(all="ignore"):
        operators = {"/": np.divide, "//": np.floor_divide, "%": np.remainder, "**": np.power}
        return float(operators[op](np.float64(a), np.float64(b)))


def called(node, sample):
    name = node.func.id
    if name in ("sum", "max", "mean", "len", "any", "all") and len(node.args) == 1:
        values = [by_itself(node.args[0], {**sample, "v": x, "r": x}) for x in sample[list_name(node)]]
        return reduced(name, values)
    if name == "where":
        condition = by_itself(node.args[0], sample)
        chosen = [number(one, sample) for one in node.args[1:]]
        return math.nan if condition is None else chosen[0] if condition else chosen[1]
    values = [number(one, sample) for one in node.args]
    with np.errstate(all="ignore"):
        if name in ("isfinite", "isnan"):
            return bool(getattr(math, name)(values[0]))
        if name in ("min", "max"):
            return math.nan if any(map(math.isnan, values)) else {"min": min, "max": max}[name](values)
        return float(getattr(np, name)(np.float64(values[0])))


def list_name(node):
    return next(one.id for one in ast.walk(node) if isinstance(one, ast.Name) and one.id in "vr")


def reduced(name, values):
    if name in ("any", "all"):
        return (any_of if name == "any" else all_of)(values)
    numbers = [math.nan if x is None else x for x in values]
    if name == "len":
        return len(numbers)
    if name == "sum":
        return sum(numbers)
    if not numbers or any(map(math.isnan, numbers)):
        return math.nan
    return max(numbers) if name == "max" else sum(numbers) / len(numbers)


# whole numbers and halves, so that sums in another order are the same
values = st.one_of(st.integers(-8, 8).map(lambda k: k / 2), st.sampled_from([math.nan, 0.0]))


@st.composite
def samples(draw):
    return {
        "a": draw(st.one_of(values, st.sampled_from([math.inf, -math.inf]))),
        "yield": draw(values),
        "k": draw(st.integers(-5, 5)),
        "flag": draw(st.booleans()),
        "v": draw(st.lists(values, min_size=3, max_size=3)),
        "r": draw(st.lists(values, max_size=4)),
    }


@st.composite
def numbers(draw, depth, inside=""):
    """Text of a number; inside a reduction it may name the list."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        leaves = ["a", "yield", "k", "2", "0.5", "0", *([inside] * 4 if inside else [])]
        return draw(st.sampled_from(leaves))
    match draw(st.integers(0, 5)):
        case 0:
            op = draw(st.sampled_from(["+", "-", "*", "/", "//", "%"]))
            return f"({draw(numbers(depth - 1, inside))} {op} {draw(numbers(depth - 1, inside))})"
        case 1:
            name = draw(st.sampled_from(["abs", "sqrt", "log10", "exp", "floor"]))
            return f"{name}({draw(numbers(depth - 1, inside))})"
        case 2:
            two = draw(numbers(depth - 1, inside)), draw(numbers(depth - 1, inside))
            return f"{draw(st.sampled_from(['min', 'max']))}({two[0]}, {two[1]})"
        case 3:
            two = draw(numbers(depth - 1, inside)), draw(numbers(depth - 1, inside))
            return f"where({draw(conditions(depth - 1, inside))}, {two[0]}, {two[1]})"
        case 4:
            return f"-{draw(numbers(depth - 1, inside))}"
    if inside:
        return inside
    of = draw(st.sampled_from(["v", "r"]))
    return f"{draw(st.sampled_from(['sum', 'max', 'mean', 'len']))}({of})"


@st.composite
def conditions(draw, depth, inside=""):
    if depth == 0:
        return draw(st.sampled_from(["flag", "isfinite(a)", "yield > 1", "0 < k <= 3"]))
    match draw(st.integers(0, 4)):
        case 0:
            ops = draw(st.lists(st.sampled_from(["<", "<=", "==", "!=", ">"]), min_size=1, max_size=2))
            terms = [draw(numbers(depth - 1, inside)) for _ in range(len(ops) + 1)]
            return f"({terms[0]} " + " ".join(f"{op} {t}" for op, t in zip(ops, terms[1:], strict=True)) + ")"
        case 1:
            return f"(not {draw(conditions(depth - 1, inside))})"
        case 2 if not inside:
            of = draw(st.sampled_from(["v", "r"]))
            return f"{draw(st.sampled_from(['any', 'all']))}({of} > {draw(st.sampled_from(['a', '0', 'k']))})"
        case _:
            op = draw(st.sampled_from(["and", "or"]))
            return f"({draw(conditions(depth - 1, inside))} {op} {draw(conditions(depth - 1, inside))})"


def columns_of(rows):
    items = [np.array(row["r"], dtype=np.float32) for row in rows]
    return {
        "a": np.array([row["a"] for row in rows], dtype=np.float32),
        "yield": np.array([row["yield"] for row in rows]),
        "k": np.array([row["k"] for row in rows], dtype=np.int16),
        "flag": np.array([row["flag"] for row in rows]),
        "v": np.array([row["v"] for row in rows]).reshape(len(rows), 3),
        "r": Ragged.of(items, np.dtype(np.float32), ()),
    }


def one_by_one(text, rows):
    root = parse(text).root
    with np.errstate(all="ignore"):
        return [by_itself(root, row) for row in rows]


@settings(max_examples=repeats(100, 3000), deadline=None)
@given(rows=st.lists(samples(), min_size=1, max_size=5), text=numbers(3))
def test_a_number_is_what_python_computes_for_the_sample_alone(rows, text):
    found = evaluate(parse(text), columns_of(rows), len(rows)).values
    np.testing.assert_allclose(
        np.asarray(found, float), np.array(one_by_one(text, rows), float), rtol=1e-12, equal_nan=True
    )


@settings(max_examples=repeats(100, 3000), deadline=None)
@given(rows=st.lists(samples(), min_size=1, max_size=5), text=conditions(3))
def test_a_condition_is_true_where_python_says_so_and_nothing_is_undefined(rows, text):
    found = is_true(parse(text), columns_of(rows), len(rows))
    assert found.tolist() == [value is True for value in one_by_one(text, rows)]


@settings(max_examples=repeats(25, 500), deadline=None)
@given(rows=st.lists(samples(), min_size=2, max_size=8), text=conditions(3), cut=st.integers(1, 7))
def test_the_samples_beside_it_do_not_matter(rows, text, cut):
    whole = is_true(parse(text), columns_of(rows), len(rows))
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    assert whole.tolist() == [x for part in parts for x in is_true(parse(text), columns_of(part), len(part))]


def items(*values):
    return Ragged(np.array(values), np.array([0, 1, 3]))


OPERANDS = {
    "a": (ValueType("float"), np.array([0.5, 2.0])),
    "k": (ValueType("int"), np.array([1, 3], np.uint8)),
    "flag": (ValueType("bool"), np.array([True, False])),
    "v": (ValueType("float", (3,)), np.ones((2, 3), np.float32)),
    "image": (ValueType("int", (2, 3)), np.ones((2, 2, 3), np.int16)),
    "r": (ValueType("float", (None,), "r"), items(1.0, 2.0, 3.0)),
    "hits": (ValueType("bool", (None,), "r"), items(True, False, True)),
    "path": (ValueType("int", (None, 3), "path"), Ragged(np.ones((3, 3), np.int64), np.array([0, 1, 3]))),
}


def texts_of_one(x):
    yield from (f"{name}({x})" for name in ELEMENTWISE | REDUCTIONS | {"min", "max"})
    yield from (x, f"-{x}", f"not {x}", f"{x}[0]", f"{x}[:, 1]", f"{x}[1:]", f"{x}[:]", f"0 < {x} < 2")


def texts_of_two(x, y):
    yield from (f"{x} {op} {y}" for op in OPERATORS.values())
    yield from (f"{name}({x}, {y})" for name in ("min", "max", "arctan2", "hypot"))
    yield from (f"where(flag, {x}, {y})", f"where(image > 0, {x}, {y})", f"clip({x}, 0, {y})")


@pytest.mark.parametrize("x", OPERANDS)
def test_the_type_of_a_value_is_known_before_the_run(x):
    types = {name: known for name, (known, _) in OPERANDS.items()}
    columns = {name: values for name, (_, values) in OPERANDS.items()}
    num = 0
    for text in (*texts_of_one(x), *(text for y in OPERANDS for text in texts_of_two(x, y))):
        try:
            known = type_of(parse(text), types)
        except ExpressionError:
            continue  # refused before the run
        found = evaluate(parse(text), columns, 2).values
        assert isinstance(found, Ragged) == known.ragged, text
        flat = found.values if isinstance(found, Ragged) else found
        kind = {"b": "bool", "i": "int", "f": "float"}[flat.dtype.kind]
        assert (kind, flat.shape[1:]) == (known.kind, known.shape[known.ragged :]), text
        num += 1
    assert num > 50


IMAGES = np.arange(2 * 3 * 4 * 2, dtype=np.float32).reshape(2, 3, 4, 2)
PATHS = Ragged(np.arange(15.0).reshape(5, 3), np.array([0, 2, 5]))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max(image)", [23, 47]),
        ("image[0, 1, 1]", [3, 27]),
        ("sum(image[:, :, 0] - image[:, :, 1])", [-12, -12]),
        ("mean(image[-1])", [19.5, 43.5]),
        ("sum(path[:, 2])", [7, 33]),
        ("len(path)", [2, 3]),
        ("len(image)", [3, 3]),
        ("sum(path * x)", [15, 180]),
        ("max(path[:, 0] - path[:, 2])", [-2, -2]),
        ("std(path)", [np.std(np.arange(6.0)), np.std(np.arange(6.0, 15.0))]),
        ("sum(image * image[0, 0])", None),
        ("sum(path > 5)", [0, 9]),
        ("clip(x, 1.5, 3)", [1.5, 2]),
        ("hypot(3 * x, 4 * x)", [5, 10]),
        ("big + 1", [2**40 + 1, 2]),
    ],
)
def test_axes_items_and_functions(text, expected):
    columns = {"image": IMAGES, "path": PATHS, "x": np.array([1.0, 2.0]), "big": np.array([2**40, 1])}
    if expected is None:
        expected = [(IMAGES[i].astype(float) * IMAGES[i, 0, 0]).sum() for i in range(2)]
    np.testing.assert_allclose(evaluate(parse(text), columns, 2).values, expected)


def test_items_of_a_ragged_field_can_be_derived_from():
    found = evaluate(parse("path[:, 0] * x"), {"path": PATHS, "x": np.array([1.0, 10.0])}, 2).values
    assert isinstance(found, Ragged)
    assert found.offsets.tolist() == [0, 2, 5]
    assert found.values.tolist() == [0, 3, 60, 90, 120]


def test_blocks_of_samples_do_not_show(monkeypatch):
    monkeypatch.setattr("merlin.shards.writing.expression._BLOCK_BYTES", 100)
    paths = Ragged.of([np.arange(float(i)) for i in range(40)], np.dtype(float), ())
    columns = {"path": paths, "x": np.arange(40.0)}
    assert evaluate(parse("sum(path) + x"), columns, 40).values.tolist() == [
        i * (i - 1) / 2 + i for i in range(40)
    ]
    ragged = evaluate(parse("path + x"), columns, 40).values
    assert isinstance(ragged, Ragged)
    assert ragged.lengths.tolist() == list(range(40))
    assert is_true(parse("len(path) > 5"), columns, 40).sum() == 34


def test_texts_are_compared_and_nothing_else():
    columns = {"tag": np.array(["good", "bad"], dtype=object), "x": np.array([1.0, 2.0])}
    assert is_true(parse("tag == 'good'"), columns, 2).tolist() == [True, False]
    with pytest.raises(BadOutput, match="'tag' is a text"):
        evaluate(parse("tag + 1"), columns, 2)
    with pytest.raises(BadOutput, match="compares a text with a number"):
        is_true(parse("tag < x"), columns, 2)


def test_nothing_raises_over_numbers():
    columns = {"k": np.array([0, -3, 2]), "x": np.array([0.0, -1.0, 1e308])}
    for text in (
        "1 / k",
        "k // 0",
        "k % k",
        "k ** -1",
        "log(x)",
        "sqrt(x)",
        "x * 1e10",
        "0 ** (0 - k)",
        "k / 0 * 0",
    ):
        assert len(evaluate(parse(text), columns, 3).values) == 3


def test_combining_many_conditions_is_one_value_per_sample():
    text = " and ".join(["x > 0"] * 100)
    assert reduce(lambda a, b: a and b, is_true(parse(text), {"x": np.array([1.0, 2.0])}, 2).tolist())


LARGE = st.sampled_from([0, 1, -1, 3, 2**31, 2**53 + 1, 2**62, 2**63 - 1, -(2**63)])


@settings(max_examples=repeats(70, 2000), deadline=None)
@given(
    rows=st.lists(st.tuples(LARGE, LARGE), min_size=1, max_size=6),
    text=st.sampled_from(
        ["a + b", "a - b", "a * b", "-a", "abs(b)", "sum(v)", "sum(r)", "a * b - a", "max(a, b)"]
    ),
)
def test_integers_are_exact_as_long_as_they_fit_and_then_floats(rows, text):
    a, b = (np.array(column) for column in zip(*rows, strict=True))
    ragged = Ragged(np.stack([a, b], axis=1).reshape(-1), np.arange(len(rows) + 1) * 2)
    columns = {"a": a, "b": b, "v": np.stack([a, b], axis=1), "r": ragged}
    found = evaluate(parse(text), columns, len(rows)).values.tolist()
    for (x, y), value in zip(rows, found, strict=True):
        exact = {
            "a + b": x + y,
            "a - b": x - y,
            "a * b": x * y,
            "-a": -x,
            "abs(b)": abs(y),
            "a * b - a": x * y - x,
            "max(a, b)": max(x, y),
        }.get(text, x + y)
        if isinstance(value, int):
            assert value == exact
        else:
            steps = [exact, x * y] if text == "a * b - a" else [exact]
            assert any(not -(2**63) <= step < 2**63 for step in steps)
            assert value == pytest.approx(float(exact), rel=1e-12)


def test_items_beyond_int64_leave_the_samples_beside_them_exact():
    paths = Ragged(np.array([2**53 + 1, 2**62, 2**62, 3]), np.array([0, 1, 3, 3, 4]))
    found = evaluate(parse("2 * path"), {"path": paths}, 4).values
    assert isinstance(found, Ragged)
    assert [row.tolist() for row in found] == [[2**54 + 2], [2.0**63, 2.0**63], [], [6]]
    assert is_true(parse("sum(path * 4) > 0"), {"path": paths}, 4).tolist() == [True, True, False, True]


def test_unsigned_numbers_are_compared_exactly_and_not_negative():
    columns = {"u": np.uint64(2**64 - 1) - np.arange(3, dtype=np.uint64), "k": np.array([-1, 5, 7])}
    assert is_true(parse("u == 18446744073709551615"), columns, 3).tolist() == [True, False, False]
    assert is_true(parse("u > k"), columns, 3).all()
    assert evaluate(parse("u"), columns, 3).values.tolist() == columns["u"].tolist()
    assert evaluate(parse("u + k"), columns, 3).values.tolist() == [2.0**64] * 3
