"""The expression language: what is understood, what is refused, and where the message points."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.spec.expression import Expression, ExpressionError, parse
from merlin.spec.expression_types import ValueType, expect_condition, type_of

NAMES = {
    "yield": ValueType("float"),
    "count": ValueType("int"),
    "flag": ValueType("bool"),
    "tag": ValueType("text"),
    "x": ValueType("any"),
    "image": ValueType("float", (64, 32, 3)),
    "path": ValueType("float", (None, 3), "path"),
    "mass": ValueType("float", (None,), "path"),
    "other": ValueType("float", (None, 3), "other"),
    "mol.nodes": ValueType("float", (None, 3), "mol nodes"),
    "wave": ValueType("complex"),
    "mode (4,3)": ValueType("float"),
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("yield > 1e14", ("yield",)),
        ("lambda + class * import", ("lambda", "class", "import")),
        ("`mode (4,3)` < 2", ("mode (4,3)",)),
        ("max(mol.nodes) > 0 and a.b", ("mol.nodes", "a.b")),
        ("max", ("max",)),
        ("pi * x", ("pi", "x")),
        ("'text' == tag", ("tag",)),
        ("not not flag", ("flag",)),
    ],
)
def test_names_may_be_any_words(text, names):
    assert parse(text).names == names


@st.composite
def python_texts(draw, depth=3):
    if depth == 0:
        return draw(st.sampled_from(["a", "b", "1", "2.5", ".5", "1e3"]))
    match draw(st.integers(0, 4)):
        case 0:
            op = draw(st.sampled_from(["+", "-", "*", "/", "//", "%", "**", "<", ">=", "==", "and", "or"]))
            return f"{draw(python_texts(depth - 1))} {op} {draw(python_texts(depth - 1))}"
        case 1:
            return f"({draw(python_texts(depth - 1))})"
        case 2:
            return f"-{draw(python_texts(depth - 1))}"
        case 3:
            return f"not {draw(python_texts(depth - 1))}" if depth == 3 else draw(python_texts(depth - 1))
    return f"abs({draw(python_texts(depth - 1))})"


@given(text=python_texts())
def test_operators_bind_as_in_python(text):
    try:
        expected = ast.parse(text, mode="eval").body
    except SyntaxError:
        with pytest.raises(ExpressionError):
            parse(text)
        return
    assert ast.dump(parse(text).root) == ast.dump(expected)


@given(text=st.text(alphabet="ab1.()[]:,+-*/%<>=!'\"`$&|~^ andortx\n", max_size=30))
def test_no_text_breaks_the_parser(text):
    try:
        assert isinstance(parse(text), Expression)
    except ExpressionError as error:
        assert 1 <= error.col <= len(text) + 1


@pytest.mark.parametrize(
    ("text", "col", "message"),
    [
        ("", 1, "empty"),
        ("x = 1", 3, "'=' is not understood"),
        ("x && y", 3, "'&' is not understood"),
        ("$(x) > 1", 1, "is not understood"),
        ("(x", 3, "expected ')', found the end"),
        ("x y", 3, "expected the end of the expression, found 'y'"),
        ("x + * 2", 5, "expected a value, found '*'"),
        ("logg(x)", 1, "no function 'logg'"),
        ("clip(x)", 1, "clip() takes 3 arguments, not 1"),
        ("sqrt(x, 2)", 1, "sqrt() takes 1 argument, not 2"),
        ("x.", 2, "is not understood"),
        ("image[x]", 7, "expected a whole number or ':'"),
        ("image[::0]", 9, "cannot be 0"),
        ("image[(0)]", 7, "expected a whole number or ':', found '('"),
        ("image[0, (1)]", 10, "expected a whole number or ':', found '('"),
        ("1e999 < x", 1, "too large"),
        ("x < " + "9" * 5000, 5, "too large"),
        ("(" * 200 + "x" + ")" * 200, None, "nested too deeply"),
        ("x + " * 400 + "x", None, "longer than"),
        ("2 ** " * 100 + "x", None, "nested too deeply"),
        ("-" * 500 + "x", None, "nested too deeply"),
        ("x + not y", 5, "'not' is not understood"),
        ("image[0:1:2:3]", 12, "':' is not understood"),
        ("max(x, )", 8, "expected a value, found ')'"),
        ("(x, y)", 3, "expected ')', found ','"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_column(text, col, message):
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert message in str(caught.value)
    if col is not None:
        assert caught.value.col == col


def test_a_wrong_function_gets_a_suggestion():
    with pytest.raises(ExpressionError) as caught:
        parse("lgo10(x)")
    assert caught.value.hint.startswith("did you mean 'log10'?")


@pytest.mark.parametrize(
    ("text", "kind", "shape"),
    [
        ("yield", "float", ()),
        ("count + 1", "int", ()),
        ("count / 2", "float", ()),
        ("count ** 2", "float", ()),
        ("-flag", "int", ()),
        ("flag", "bool", ()),
        ("x + 1", "float", ()),
        ("count * image", "float", (64, 32, 3)),
        ("image[:, :, 0]", "float", (64, 32)),
        ("image[0, -1]", "float", (3,)),
        ("image[::2, 1:3]", "float", (32, 2, 3)),
        ("image > 2", "bool", (64, 32, 3)),
        ("image - image[0, 0]", "float", (64, 32, 3)),
        ("path[:, 0] * mass", "float", (None,)),
        ("path * 2", "float", (None, 3)),
        ("sum(path)", "float", ()),
        ("sum(path > 0)", "int", ()),
        ("len(path)", "int", ()),
        ("max(count, 2)", "int", ()),
        ("max(count, yield)", "float", ()),
        ("where(flag, 1, 2)", "int", ()),
        ("where(image > 0, image, 0)", "float", (64, 32, 3)),
        ("any(image > 1) or tag == 'a'", "bool", ()),
        ("0 < yield < pi", "bool", ()),
        ("isfinite(yield)", "bool", ()),
        ("abs(count)", "int", ()),
        ("round(yield)", "float", ()),
    ],
)
def test_types_are_known_before_the_run(text, kind, shape):
    found = type_of(parse(text), NAMES)
    assert (found.kind, found.shape) == (kind, shape)


@pytest.mark.parametrize(
    ("text", "col", "message"),
    [
        ("yeild > 1", 1, "'yeild' is no field, input or parameter"),
        ("yield > 1 and ylied", 15, "'ylied' is no field"),
        ("tag + 1", 5, "a text can only be compared"),
        ("tag < 'b'", 5, "texts have no order"),
        ("tag == yield", 5, "compares a text with a number"),
        ("image + image[:, 0]", 7, "cannot combine"),
        ("path + other", 6, "as many items on both sides"),
        ("path * mol.nodes", 6, "as many items"),
        ("path + image", 6, "cannot combine"),
        ("path[0]", 5, "its own number of items"),
        ("image[64]", 6, "index 64 is outside an axis of 64"),
        ("image[0, 0, 0, 0]", 6, "4 indices for"),
        ("yield[0]", 6, "needs a value with axes"),
        ("not yield", 5, "has to be true or false"),
        ("flag and count", 10, "has to be true or false"),
        ("any(image)", 5, "has to be true or false"),
        ("len(yield)", 1, "needs a value with axes"),
        ("abs(wave)", 5, "'wave' is complex"),
    ],
)
def test_operands_that_do_not_fit_are_refused(text, col, message):
    with pytest.raises(ExpressionError) as caught:
        type_of(parse(text), NAMES)
    assert message in str(caught.value)
    assert caught.value.col == col


def test_a_close_name_is_suggested():
    with pytest.raises(ExpressionError) as caught:
        type_of(parse("yeild > 1"), NAMES)
    assert caught.value.hint.startswith("did you mean 'yield'?")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("yield", "compare it, e.g. yield > 0"),
        ("tag", "compare it with =="),
        ("image > 1", "all(…) or any(…)"),
    ],
)
def test_a_condition_is_one_truth_per_sample(text, hint):
    expression = parse(text)
    with pytest.raises(ExpressionError) as caught:
        expect_condition(expression, type_of(expression, NAMES))
    assert hint in caught.value.hint
