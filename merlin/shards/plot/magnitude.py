"""Numbers as they are drawn: complex ones by their magnitude, and called so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from merlin.shards.format.manifest_file import FieldInfo

Array = np.ndarray[Any, Any]


def drawn(values: Any) -> Array:
    """Real numbers as they are, the magnitudes of complex ones."""
    found = np.asarray(values)
    return np.abs(found) if found.dtype.kind == "c" else found


def drawn_name(info: FieldInfo) -> str:
    return f"|{info.name}|" if np.dtype(info.dtype).kind == "c" else info.name
