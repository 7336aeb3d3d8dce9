"""What two definitions of a data set have in common: values that one has stored are those that the other wants.

A field's values are the same if they come from the same place and are stored with the same precision. Its name, kind,
units, codec and shape of a chunk do not matter. An expression means the same if all that it names does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from merlin.plan.plan import Aggregate, PlannedField
from merlin.shards.writing.derive import parse_once

_VALUES = ("output", "file", "key", "regex", "is_text", "dtype", "shape", "ragged", "keep_bits")


def given_fields(aggregate: Aggregate) -> tuple[PlannedField, ...]:
    """The fields that are not derived; all others follow from these."""
    return tuple(field for field in aggregate.fields if not field.expression)


def stored_fields(old: Aggregate | None, new: Aggregate) -> dict[str, PlannedField]:
    """The old field for each new one that is not derived and that the old definition has stored, by name."""
    if old is None:
        return {}
    known = {_values_of(field): field for field in given_fields(old)}
    return {f.name: known[_values_of(f)] for f in given_fields(new) if _values_of(f) in known}


def kept_filters(old: Aggregate | None, new: Aggregate) -> frozenset[str]:
    """The filters that both definitions have, with the same meaning: what one rejected, the other one rejects."""
    if old is None:
        return frozenset()
    ours, theirs = ({f.name: f for f in each.fields} for each in (old, new))
    return frozenset(
        text for text in old.valid if text in new.valid and _meaning(text, ours) == _meaning(text, theirs)
    )


def _values_of(field: PlannedField) -> tuple[Any, ...]:
    dtype = "" if field.is_text else field.value_dtype.str
    return tuple(dtype if name == "dtype" else getattr(field, name) for name in _VALUES)


def _meaning(text: str, fields: Mapping[str, PlannedField]) -> tuple[Any, ...]:
    """An expression with what its names stand for; inputs and parameters are the study's in any case."""
    named = sorted(parse_once(text).names & fields.keys())
    return text, tuple((name, _meaning_of_field(fields[name], fields)) for name in named)


def _meaning_of_field(field: PlannedField, fields: Mapping[str, PlannedField]) -> tuple[Any, ...]:
    derived = _meaning(field.expression, fields) if field.expression else ()
    return (*_values_of(field), derived)
