"""Records as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from merlin.base.records import FileFormat, indented

FORMAT = FileFormat("merlin-thing", 2)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("ensure_ascii", [True, False])
@given(value=VALUES)
@example(value=["\udcff", float("nan")])
def test_indented_is_what_python_writes(value: Any, ensure_ascii: bool) -> None:
    assert indented(value, ensure_ascii=ensure_ascii) == json.dumps(
        value, indent=1, ensure_ascii=ensure_ascii
    )


def test_a_head_is_of_its_own_format_and_comes_first() -> None:
    assert json.dumps({**FORMAT.head(), "a": 1}) == '{"format": "merlin-thing", "version": 2, "a": 1}'
    assert FORMAT.is_of({"a": 1, **FORMAT.head()})
    FORMAT.require(FORMAT.head())


@pytest.mark.parametrize(
    ("data", "found"),
    [
        ({"format": "merlin-thing", "version": 3}, "found merlin-thing 3"),
        ({"format": "merlin-other", "version": 2}, "found merlin-other 2"),
        ({"version": 2}, "it does not say its format"),
        ({"format": "merlin-thing", "version": "2"}, "found merlin-thing '2'"),
        ({"format": "merlin-thing", "version": True}, "found merlin-thing True"),
        ({"format": "merlin-thing", "version": 2.0}, "found merlin-thing 2.0"),
        ({"format": "merlin-thing"}, "found merlin-thing None"),
        ({"format": ["merlin-thing"], "version": 2}, "it does not say its format"),
        ([1], "it does not say its format"),
        (None, "it does not say its format"),
    ],
)
def test_another_format_is_named(data: object, found: str) -> None:
    assert not FORMAT.is_of(data)
    with pytest.raises(ValueError, match=f"^expected merlin-thing version 2, .*{found}$"):
        FORMAT.require(data)
