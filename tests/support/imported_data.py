"""Data sets made of arrays, by the import."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from merlin.base.document.findings import Findings
from merlin.shards.importing.run import import_data
from merlin.spec.import_schema import parse_import_schema


def import_arrays(folder: Path, schema: str, arrays: Mapping[str, Any], *, name: str = "samples") -> Path:
    """Write the arrays into `folder`/NAME.npz, and the data set that is made of them into `folder`/data."""
    folder.mkdir(parents=True, exist_ok=True)
    source = folder / f"{name}.npz"
    np.savez(source, **arrays)
    import_data([source], parse_import_schema(schema, Findings("schema")), folder / "data")
    return folder / "data"
