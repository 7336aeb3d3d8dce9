"""Tokens whose names have tokens in them, as in `$($(MODEL)_steps)`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec.structs import replace

from merlin.base.document.tokens import TOKEN, find_tokens, substitute_in_names
from merlin.base.document.tree import Entry
from merlin.spec.expand import Expansion, column_labels
from merlin.spec.variables import sample_names

_MANY = 100  # values of a parameter


def with_names(entry: Entry, values: Mapping[str, str], made: set[str]) -> Entry:
    """The tree with variables filled in inside of names: `$(small_steps)`; `made` gets the names that this makes."""
    content = entry.content
    if isinstance(content, dict):
        filled = {
            substitute_in_names(key, values): with_names(item, values, made) for key, item in content.items()
        }
        return replace(entry, content=filled)
    if isinstance(content, list):
        return replace(entry, content=[with_names(item, values, made) for item in content])
    text = substitute_in_names(entry.text, values)
    if text == entry.text:
        return entry
    made |= {token.name for token in find_tokens(text)} - {token.name for token in find_tokens(entry.text)}
    return replace(entry, content=text)


def known_too_late(name: str, expansion: Expansion) -> tuple[str, bool]:
    """What a name with tokens of parameters or samples may be that was filled in before these; empty if nothing.

    Also whether that is sure: the values of the tokens are known.
    """
    parameters = expansion.tree.get("global.parameters").mapping
    of_samples = sample_names(column_labels(expansion.tree))
    texts = TOKEN.split(name)
    inner, patterns = texts[1::2], [re.escape(text) for text in texts]
    patterns[1::2] = [_any_of(parameters.get(token, Entry(None))) for token in inner]
    if set(patterns) <= {"", ".+"}:
        return "", False
    filled_in = [*expansion.values]
    if of_samples.keys() & set(inner):
        steps = (step.get("name").text for step in expansion.tree.get("study").items)
        filled_in += [*parameters, *(f"{step}.workspace" for step in steps)]
    pattern = re.compile("".join(patterns))
    return next((known for known in filled_in if pattern.fullmatch(known)), ""), ".+" not in patterns


def _any_of(parameter: Entry) -> str:
    values = [re.escape(item.text) for item in parameter.get("values").items[:_MANY]]
    return f"(?:{'|'.join(values)})" if 0 < len(values) < _MANY else ".+"
