"""Records as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from merlin.base.records import indented

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
