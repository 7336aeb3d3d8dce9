"""A small data set with a field of a kind that only a later version of Merlin knows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from damage_tools import edit_manifest

from merlin.base.document.findings import Findings
from merlin.shards.importing.run import import_data
from merlin.spec.import_schema import parse_import_schema


def make_later_data(folder: Path, num: int = 200) -> Path:
    """Write a data set with the input x, the scalar y and the field s, whose kind is "spectrum"."""
    folder.mkdir(parents=True, exist_ok=True)
    x = np.random.default_rng(1).uniform(-1, 1, num)
    np.savez(folder / "samples.npz", x=x, y=np.sin(2 * x), s=x[:, None] * np.arange(1.0, 9.0))
    schema = parse_import_schema("inputs: [x]\nfields: {y: , s: {kind: series}}", Findings("schema"))
    directory = folder / "data"
    import_data([folder / "samples.npz"], schema, directory)

    def change(content: dict) -> None:
        (field,) = (field for field in content["fields"] if field["name"] == "s")
        field["kind"] = "spectrum"

    edit_manifest(directory, change)
    return directory
