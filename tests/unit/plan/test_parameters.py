"""Combinations of parameters, from the spec and from Maestro's generator."""

import pytest

from merlin.base.text import path_safe
from merlin.base.yaml_text import yaml_text
from merlin.errors import UsageError
from merlin.plan.parameters import as_block, combinations
from merlin.spec.model import Document


def document(**parameters):
    step = {"name": "a", "run": {"cmd": "true"}}
    return Document.model_validate(
        {"description": {"name": "s"}, "study": [step], "global.parameters": parameters}
    )


def test_the_ith_values_make_the_ith_combination():
    combos = combinations(
        document(X2={"values": [0.5, 1], "label": "X2.%%"}, A={"values": ["p", "q"], "label": ["one", "two"]})
    )
    assert [dict(combo.values) for combo in combos] == [{"X2": 0.5, "A": "p"}, {"X2": 1, "A": "q"}]
    assert [combo.label(["X2", "A"]) for combo in combos] == ["one.X2.0.5", "two.X2.1"]
    assert combos[0].tokens() == {
        "X2": "0.5",
        "X2.label": "X2.0.5",
        "X2.name": "X2",
        "A": "p",
        "A.label": "one",
        "A.name": "A",
    }


def test_a_study_without_parameters_has_no_combination():
    assert combinations(document()) == ()


def test_different_numbers_of_values_are_refused():
    with pytest.raises(UsageError, match="A has 1, B has 2"):
        combinations(document(A={"values": [1], "label": "A.%%"}, B={"values": [1, 2], "label": "B.%%"}))


@pytest.mark.parametrize(
    ("text", "safe"), [("A.1", "A.1"), ("a b/c:d", "a_bcd"), ("(x)-_", "(x)-_"), ("ü%", "")]
)
def test_directory_names_are_those_of_maestro(text, safe):
    assert path_safe(text) == safe


GENERATOR = """
from maestrowf.datastructures.core import ParameterGenerator

def get_custom_generator(env, **kwargs):
    generator = ParameterGenerator()
    num = int(kwargs.get("NUM", "2"))
    generator.add_parameter("A", list(range(num)), "A.%%")
    generator.add_parameter("B", [env.find("WHERE").value] * num)
    return generator
"""


def test_a_generator_file_replaces_the_parameters(tmp_path):
    path = tmp_path / "pgen.py"
    path.write_text(GENERATOR)
    combos = combinations(document(), path, ["NUM: 3"], {"WHERE": "here"})
    assert [combo.label(["A", "B"]) for combo in combos] == ["A.0.B.here", "A.1.B.here", "A.2.B.here"]


NUMPY = """
import numpy as np
from maestrowf.datastructures.core import ParameterGenerator

def get_custom_generator(env):
    generator = ParameterGenerator()
    generator.add_parameter("F", list(np.linspace(0, 1, 2)), "F.%%")
    generator.add_parameter("S", list(np.array([0.1, 1e-5], np.float32)), "S.%%")
    generator.add_parameter("I", list(np.arange(2)), "I.%%")
    generator.add_parameter("B", list(np.array([True, False])), "B.%%")
    generator.add_parameter("T", list(np.array(["a", "b"])), "T.%%")
    return generator
"""


def test_numbers_of_numpy_become_those_of_python(tmp_path):
    path = tmp_path / "pgen.py"
    path.write_text(NUMPY)
    combos = combinations(document(), path)
    assert [list(combo.values.values()) for combo in combos] == [
        [0.0, 0.1, 0, True, "a"],
        [1.0, 1e-5, 1, False, "b"],
    ]
    assert {type(value) for combo in combos for value in combo.values.values()} == {float, int, bool, str}
    assert combos[1].label("FSIBT") == "B.False.F.1.0.I.1.S.1e-05.T.b"
    assert "F:\n  values: [0.0, 1.0]" in yaml_text(as_block(combos))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1", "defines no function"),
        ("1 +", "SyntaxError"),
        ("def get_custom_generator(env): raise OSError('no disk')", "OSError: no disk"),
        ("def get_custom_generator(env): return 3", "must return"),
    ],
)
def test_a_broken_generator_is_a_usage_error(tmp_path, text, words):
    path = tmp_path / "pgen.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        combinations(document(), path)


def test_generator_arguments_are_pairs(tmp_path):
    with pytest.raises(UsageError, match="NAME:VALUE"):
        combinations(document(), tmp_path / "no.py", ["N=3"])
    with pytest.raises(UsageError, match="no such file"):
        combinations(document(), tmp_path / "no.py")
