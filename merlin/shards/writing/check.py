"""Check that values fit their field: shape, dtype, range and finiteness, with causes that a user can act on."""

from __future__ import annotations

from typing import Any

import numpy as np

from merlin.base.field import Field
from merlin.base.text import some_of
from merlin.shards.format.segments import Array, Ragged, Values

BLOCK_BYTES = 1 << 20


class BadOutput(Exception):
    """A task's output cannot be collected; the message is the cause, without the field's name."""


def castable(found: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """True if the kind is the same or wider; integers may change signedness, as their values are checked."""
    if found.kind in "iu" and wanted.kind in "iu":
        return True
    return found.kind != "O" and np.can_cast(found, wanted, "same_kind")


def rows_in_cache(row_bytes: int) -> int:
    """How many rows make a block that fits a core's cache."""
    return max(1, BLOCK_BYTES // max(1, row_bytes))


def bad_rows(field: Field, values: Array) -> Array:
    """Which rows of `values` (n, …) do not survive the cast to the field's dtype, or are not finite though
    they must.

    Works block by block, so the extra memory does not grow with n.
    """
    wanted = field.value_dtype
    bad = np.zeros(len(values), dtype=bool)
    narrows = values.dtype != wanted and not np.can_cast(values.dtype, wanted, "safe")
    if wanted.kind in "fc" and (field.finite or narrows):
        test = _not_finite if field.finite else _overflows
    elif wanted.kind in "iu" and narrows:
        test = _out_of_range
    else:
        return bad
    step = rows_in_cache(values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64)))
    for lo in range(0, len(values), step):
        block = values[lo : lo + step]
        wrong = test(block, wanted)
        if wrong.any():
            bad[lo : lo + step] = wrong.reshape(len(block), -1).any(axis=1)
    return bad


def _not_finite(block: Array, wanted: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):
        return np.asarray(~np.isfinite(block if block.dtype == wanted else block.astype(wanted)))


def _overflows(block: Array, wanted: np.dtype[Any]) -> Array:
    return np.asarray(_not_finite(block, wanted) & np.isfinite(block))


def _out_of_range(block: Array, wanted: np.dtype[Any]) -> Array:
    limits = np.iinfo(wanted)
    if block.dtype.kind == "f":  # the largest integer may have no float of its own, but the one after it has
        return np.asarray((block < float(limits.min)) | (block >= float(limits.max + 1)))
    return np.asarray((block < limits.min) | (block > limits.max))


def explain_bad_row(field: Field, row: Array) -> str:
    """The cause for a row that `bad_rows` reported."""
    wanted = field.value_dtype
    if wanted.kind in "iu":
        offending = row[_out_of_range(row, wanted)].flat[0]
        return f"expected {wanted.name} values, found {offending}, which is out of range"
    lost = _overflows(row, wanted)
    if lost.any():
        return f"expected {wanted.name} values, found {row[lost].flat[0]!s}, which is out of range"
    wrong = ~np.isfinite(row)
    if row.ndim == 0:
        return f"expected a finite value, found {row!s}"
    first = tuple(int(i) for i in np.argwhere(wrong)[0])
    share = f"{int(wrong.sum())} of {row.size} values"
    return f"expected finite values, found {row[first]!s} at {list(first)} ({share})"


def bad_samples(field: Field, column: Values) -> Array:
    """(n,) `bad_rows` of a column; of a ragged one, the samples with a bad item."""
    if isinstance(column, Ragged):
        return column.any_item(bad_rows(field, column.items))
    return bad_rows(field, column)


def explain_bad_sample(field: Field, column: Values, i: int) -> str:
    """The cause for a sample that `bad_samples` reported."""
    return explain_bad_row(field, np.asarray(column[i]))


def shape_text(field: Field) -> str:
    """ "(64, 64, 4)", "(*, 3)" of a ragged field."""
    return str(field.shape) if not field.ragged else f"({', '.join(['*', *map(str, field.shape)])})"


def shape_mismatch(field: Field, found: tuple[int, ...]) -> str:
    if not field.ndim:
        return f"expected a scalar, found shape {found}"
    hint = ""
    if field.role == "edges" and len(found) == 2 and found[0] == 2:
        hint = "; transpose it: one row per edge"
    return f"expected shape {shape_text(field)}, found {found or 'a scalar'}{hint}"


def fits(field: Field, shape: tuple[int, ...]) -> bool:
    """Return whether this is the shape of one sample."""
    return (len(shape) == field.ndim and shape[1:] == field.shape) if field.ragged else shape == field.shape


def convert(field: Field, raw: Any, *, textual: bool = False) -> Any:
    """One task's value as an array of the field's shape, or str for text; not yet range-checked (`bad_rows`).

    Of a ragged field: its items (m, *field.shape).

    `textual` says that `raw` was read from text, so its strings are parsed as numbers. Raises BadOutput.
    """
    if field.is_text:
        return _to_text(raw)
    wanted = field.value_dtype
    if raw is None:
        raise BadOutput(f"expected {wanted.name}, found null")
    if isinstance(raw, dict):
        raise BadOutput(
            f"expected {wanted.name} of shape {shape_text(field)}, found an object with keys {some_of(raw)}"
        )
    if textual:
        raw = _parse_numbers(raw, wanted)
    try:
        array = np.asarray(raw)
    except (ValueError, OverflowError):
        raise BadOutput(f"expected shape {shape_text(field)}, found lists of unequal length") from None
    if array.dtype.kind == "O" and isinstance(raw, int):
        raise BadOutput(f"expected {wanted.name} values, found {raw}, which is out of range")
    if field.ragged and not array.size and array.shape[:1] == (0,):
        array = np.empty((0, *field.shape), wanted)  # an empty list does not show the shape of its items
    if not fits(field, array.shape):
        raise BadOutput(shape_mismatch(field, array.shape))
    if not castable(array.dtype, wanted) and array.size:
        raise BadOutput(f"expected dtype {wanted.name}, found {_found(array)}")
    return array


def _found(array: Array) -> str:
    if array.dtype.kind in "US":
        return f"text {str(array.flat[0])!r}"
    if array.dtype.kind == "O":
        return "null" if any(x is None for x in array.flat) else "mixed values"
    return str(array.dtype.name)


def _to_text(raw: Any) -> str:
    if isinstance(raw, np.ndarray) and raw.ndim == 0:
        raw = raw[()]
    if isinstance(raw, bytes):
        raw = raw.decode("utf-8", "replace")
    if not isinstance(raw, str):
        raise BadOutput(f"expected text, found {type(raw).__name__}")
    if "\0" in raw:
        raise BadOutput("expected text, found a NUL character in it")
    try:
        raw.encode()
    except UnicodeEncodeError:
        raise BadOutput("expected text that can be UTF-8, found half a surrogate pair") from None
    return str(raw)


def _parse_numbers(raw: Any, wanted: np.dtype[Any]) -> Any:
    """Turn a string, or a list of strings, or rows of strings, into numbers of the wanted kind."""
    if isinstance(raw, list):
        return [_parse_numbers(item, wanted) for item in raw]
    text = str(raw).strip()
    try:
        match wanted.kind:
            case "i" | "u":
                return int(text)
            case "b":
                return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
            case "c":
                return complex(text)
            case _:
                return float(text.replace("D", "e").replace("d", "e") if text[-1:].isdigit() else text)
    except (ValueError, KeyError):
        raise BadOutput(f"expected {wanted.name}, found text {text[:40]!r}") from None
