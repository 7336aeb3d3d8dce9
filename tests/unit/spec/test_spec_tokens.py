"""Tokens and variables, apart from any spec."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.base.document.findings import is_one_edit_away
from merlin.base.document.tokens import (
    find_incomplete,
    find_tokens,
    is_shell_substitution,
    substitute,
    substitute_in_names,
)
from merlin.spec.variables import resolve_variables

NAMES = st.sampled_from(["A", "B", "C", "D"])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("echo $(A) $(b.workspace)/$(P.label)", ["A", "b.workspace", "P.label"]),
        ("$(my-step.workspace)", ["my-step.workspace"]),
        ("$(ls | wc -l) $((1+2)) $(cat 'x') ${A} $A", []),
        ("$(date)", ["date"]),
        ("$($(A))", ["A"]),
        ("$(A", []),
    ],
)
def test_tokens_are_single_words(text: str, names: list[str]) -> None:
    assert [token.name for token in find_tokens(text)] == names


def test_a_token_knows_where_it_stands() -> None:
    (token,) = find_tokens("é $(A)!")
    assert (token.start, token.end) == (2, 6)


def test_substitution_is_a_single_pass() -> None:
    assert substitute("$(A) $(B) $(C)", {"A": "$(B)", "B": "2"}) == "$(B) 2 $(C)"


@pytest.mark.parametrize(
    ("text", "named", "filled"),
    [
        ("$($(M)_s) $(M)", "$(S_s) $(M)", "10 S"),
        ("$(s$($(M)_s)) $($(U)_$(M))", "$(s10) $($(U)_S)", "deep $($(U)_S)"),
        ("$(cat $(M)) $(x$(M) y) $($(M)", "$(cat $(M)) $(x$(M) y) $($(M)", "$(cat S) $(xS y) $(S"),
        ("$(x$(BLANK)) $(x$(A))", "$(xa b) $(x$(A))", "$(xa b) $(x$(A))"),
    ],
)
def test_of_tokens_inside_each_other_the_inner_one_is_first(text: str, named: str, filled: str) -> None:
    values = {"M": "S", "S_s": "10", "s10": "deep", "BLANK": "a b", "A": "$(A)"}
    assert substitute_in_names(text, values) == named
    assert substitute(text, values) == filled


@given(st.text(alphabet="$()AB ", max_size=30))
def test_tokens_beside_each_other_are_filled_in_once(text: str) -> None:
    values = {"A": "$(B)$(", "B": "b"}
    if substitute_in_names(text, values) == text and not find_incomplete(text):
        assert substitute(text, values) == re.sub(r"\$\(([AB])\)", lambda m: values[m[1]], text)


@pytest.mark.parametrize(
    ("name", "shells"),
    [("date", True), ("./run.sh", True), ("N_SAMPLES", False), ("step.workspace", False), ("X.label", False)],
)
def test_the_shells_words_are_told_from_ours(name: str, shells: bool) -> None:
    assert is_shell_substitution(name) is shells


def test_a_token_is_of_a_whole_name() -> None:
    assert [token.name for token in find_tokens("echo $(X10)")] == ["X10"]
    assert substitute("echo $(X10)", {"X1": "wrong"}) == "echo $(X10)"


def test_variables_refer_to_each_other_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    resolved = resolve_variables({"A": "$(B)/a", "B": "$(C)/b", "C": "~/c", "D": "$(SPECROOT)/$(E)"})
    assert resolved.values == {
        "A": "/home/ada/c/b/a",
        "B": "/home/ada/c/b",
        "C": "/home/ada/c",
        "D": "$(SPECROOT)/$(E)",
    }
    assert resolved.cycles == ()


def test_variables_may_name_others_by_their_values() -> None:
    raw = {
        "PICK": "$(N_$(MODE))",
        "MODE": "fast",
        "N_fast": "$($(P)_k)",
        "LOOP": "$(A$(B))",
        "B": "B",
        "AB": "$(LOOP)",
    }
    resolved = resolve_variables(raw)
    assert resolved.values["PICK"] == "$($(P)_k)"
    assert resolved.cycles == (("LOOP", "AB", "LOOP"),)


@pytest.mark.parametrize("text", ["$(A)$(A)", "$($(A)$(A))", "$(x$(A))", "$($(B))"])
def test_a_variable_in_its_own_name_is_a_circle(text: str) -> None:
    assert resolve_variables({"A": text, "B": "A"}).cycles == (("A", "A"),)


@given(st.dictionaries(NAMES, st.lists(NAMES, max_size=3)))
def test_resolution_ends_and_leaves_tokens_only_where_there_is_a_circle(graph: dict[str, list[str]]) -> None:
    raw = {name: "/".join(f"$({other})" for other in others) for name, others in graph.items()}
    resolved = resolve_variables(raw)
    left = {token.name for value in resolved.values.values() for token in find_tokens(value)}
    assert bool(left & set(raw)) == bool(resolved.cycles)
    for cycle in resolved.cycles:
        assert cycle[0] == cycle[-1]
        assert all(step in graph[name] for name, step in pairwise(cycle))


@pytest.mark.parametrize(
    ("a", "b", "near"),
    [("XX", "X", True), ("X1", "X0", True), ("AB", "ABC", True), ("X", "X", False), ("AB", "BA", False)],
)
def test_words_that_differ_in_one_letter(a: str, b: str, near: bool) -> None:
    assert is_one_edit_away(a, b) is is_one_edit_away(b, a) is near
