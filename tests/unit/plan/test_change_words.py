"""How definitions differ, as a person would write it."""

from __future__ import annotations

from typing import Any

import pytest

from merlin.plan.change_words import changes, some_are


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (["period < 1"], ["period < 10"], ["x: period < 1, now period < 10"]),
        ([], ["a > 1", "b > 1"], ["x: none, now a > 1, b > 1"]),
        (None, "ms", ["x: none, now ms"]),
        (True, False, ["x: true, now false"]),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, ["x.b: 2, now 3", "x.c: none, now 4"]),
        ([{"a": 1}, {"a": 2}], [{"a": 1}, {"a": {"b": 3}}], ["x.1.a: 2, now b: 3"]),
        ("echo 1\n", "echo 2\n", ["x: echo 1, now echo 2"]),
        ("a\nb\nc", "a\nx\nb\nc", ["x: line 2 is new: x"]),
        ("a\nb\nc", "a\nc", ["x: line 2 is gone: b"]),
        ("a\nb 1\nc\nd", "a\nb 2\nc\ne", ["x: line 2: b 1, now b 2, and 1 more line"]),
        ("a\nb", "a\nb\nc\nd", ["x: line 3 is new: c, and 1 more line"]),
        ("echo a\n", "\necho a", ["x: spaces at the ends"]),
        (
            f"run {'-v ' * 20}--steps 10 --out file",
            f"run {'-v ' * 20}--steps 20 --out file",
            ["x: …--steps 10 --out file, now …--steps 20 --out file"],
        ),
        ("run", f"run {'-v ' * 20}", [f"x: run, now run {'-v ' * 12}…".replace(" …", "…")]),
    ],
)
def test_changes_are_told_in_words(old: Any, new: Any, told: list[str]) -> None:
    assert list(changes("x", old, new)) == told


def test_instances_are_named_by_the_first() -> None:
    assert [some_are(ids, "new") for ids in ([], ["a/P.4"], ["a/P.4", "a/P.5", "a/P.4", "a/P.6"])] == [
        "",
        "a/P.4 is new",
        "a/P.4 and 2 more are new",
    ]
