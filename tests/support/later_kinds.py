"""A small data set with a field of a kind that only a later version of Merlin knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from damage_tools import edit_manifest
from imported_data import import_arrays


def make_later_data(folder: Path) -> Path:
    """Write a data set with the input x, the scalar y and the field s, whose kind is "spectrum"."""
    x = np.random.default_rng(1).uniform(-1, 1, 200)
    arrays = {"x": x, "y": np.sin(2 * x), "s": x[:, None] * np.arange(1.0, 9.0)}
    directory = import_arrays(folder, "inputs: [x]\nfields: {y: , s: {kind: series}}", arrays)

    def change(content: dict) -> None:
        (field,) = (field for field in content["fields"] if field["name"] == "s")
        field["kind"] = "spectrum"

    edit_manifest(directory, change)
    return directory
