"""Tokens and variables, apart from any spec."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.base.document.findings import is_one_edit_away
from merlin.base.document.tokens import find_tokens, is_shell_substitution, substitute
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
