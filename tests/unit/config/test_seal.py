from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.config.seal import MAX_BODY_BYTES, seal, unseal
from merlin.errors import ForgedMessageError

KEY = bytes(range(32))
BODY = {"study": "s1", "instance": "a/x", "lo": 0, "hi": 10, "what": "dépêche"}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def envelope_of(text: str) -> dict[str, str]:
    """A text with a seal that fits, as only a holder of the key can make it."""
    return {"body": text, "mac": hmac.new(KEY, text.encode("utf-8", "replace"), hashlib.sha256).hexdigest()}


@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_what_was_sealed_comes_back(body):
    assert unseal(json.loads(json.dumps(seal(body, KEY))), KEY) == body


@pytest.mark.parametrize("body", [{"workspace": "/data/\udce9t\udce9"}, {"\udce9": ["\U0001f600", -0.5]}])
def test_names_of_files_that_are_no_text_come_back(body):
    assert unseal(json.loads(json.dumps(seal(body, KEY))), KEY) == body


def test_the_order_of_keys_does_not_matter():
    assert seal({"a": 1, "b": 2}, KEY) == seal({"b": 2, "a": 1}, KEY)


@given(st.integers(0), st.integers(1, 127))
def test_any_changed_character_is_noticed(where, by):
    sealed = seal(BODY, KEY)
    for field in ("body", "mac"):
        text = sealed[field]
        at = where % len(text)
        changed = chr((ord(text[at]) + by) % 128)
        with pytest.raises(ForgedMessageError):
            unseal({**sealed, field: text[:at] + changed + text[at + 1 :]}, KEY)


def test_another_key_does_not_fit():
    with pytest.raises(ForgedMessageError, match="another key"):
        unseal(seal(BODY, KEY), bytes(32))


@pytest.mark.parametrize(
    "envelope",
    [
        None,
        "text",
        [],
        {},
        {"body": "{}"},
        {"body": "{}", "mac": ""},
        {"body": "{}", "mac": None},
        {"body": 5, "mac": "0" * 64},
        {"body": {"lo": 1}, "mac": "0" * 64},
        {"body": "{}", "mac": "0" * 64, "more": 1},
        {"body": "{}", "mac": "é" * 64},
        {"body": "\ud800", "mac": "0" * 64},
        {"body": "x" * (MAX_BODY_BYTES + 1), "mac": "0" * 64},
        {"body": "{}", "mac": "0" * 10_000_000},
        envelope_of("[1]"),
        envelope_of("null"),
        envelope_of("{"),
        envelope_of('{"a": NaN}'),
        envelope_of("[" * 100_000),
        *(envelope_of('{"\\udce9": ' + text) for text in ("NaN}", "[" * 100_000, "9" * 5000 + "}")),
        envelope_of('{"a": ' + "9" * 5000 + "}"),
    ],
)
def test_whatever_arrives_is_refused_and_never_crashes(envelope):
    with pytest.raises(ForgedMessageError):
        unseal(envelope, KEY)


def test_the_refusal_does_not_repeat_the_message():
    with pytest.raises(ForgedMessageError) as caught:
        unseal({"body": '{"password": "hunter2"}', "mac": "0" * 64}, KEY)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("body", [{"a": float("nan")}, {"a": "x" * MAX_BODY_BYTES}])
def test_what_could_not_be_unsealed_is_not_sealed(body):
    with pytest.raises(ValueError):
        seal(body, KEY)
