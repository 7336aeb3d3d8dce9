"""A data set with fields of every kind, made by an import, and the values that went into it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from merlin.base.document.findings import Findings
from merlin.shards.importing.run import import_data
from merlin.spec.import_schema import parse_import_schema

NUM = 60
BAD = (7, 31)  # samples with a value that is not finite, which are left out
GAPS = (12, 13, 40)  # sample ids that nothing has

SCHEMA = """
name: kinds
inputs: {x: x, energy: in_energy, material: material}
parameters: {LEVEL: level}
fields:
  energy: {units: J, description: total energy}
  count: {dtype: int32}
  flag:
  big: {dtype: uint64}
  half: {dtype: float16}
  history: {kind: series}
  image: {kind: image, layout: hwc, channels: [soft, hard]}
  view: {kind: image, layout: chw}
  volume: {kind: volume, layout: dhwc}
  note: {kind: text}
  hits: {units: mm}
  tags: {}
  mesh:
    kind: graph
    members:
      nodes: {dtype: float32}
      edges: {dtype: int64}
      targets: {}
sample_id: sample_id
bad_values: drop
samples_per_shard: 16
"""
DENSE = ("energy", "count", "flag", "big", "half", "history", "image", "view", "volume", "mesh.targets")
RAGGED = ("hits", "tags", "mesh.nodes", "mesh.edges")
FIXED_SIZE = ("energy", "count", "flag", "big", "half", "history", "image", "view", "volume", "note")


@dataclass
class Made:
    path: Path
    rows: np.ndarray  # of the samples that are in it
    values: dict[str, list]  # by column: fields, "inputs/x", "parameters/LEVEL"; one entry per sample in it


def make_values() -> tuple[np.ndarray, dict[str, list]]:
    """(row of each, values of each) of NUM samples, the bad ones among them."""
    rng = np.random.default_rng(3)
    rows = np.setdiff1d(np.arange(NUM + len(GAPS)), GAPS)
    energy = rng.normal(size=NUM)
    energy[list(BAD)] = [np.nan, np.inf]
    lengths = rng.integers(0, 5, NUM)
    nodes = rng.integers(1, 6, NUM)
    values: dict[str, list] = {
        "energy": list(energy),
        "count": list(rng.integers(-(2**31), 2**31, NUM).astype(np.int32)),
        "flag": list(rng.random(NUM) < 0.5),
        "big": list(rng.integers(2**63, 2**64, NUM, dtype=np.uint64)),
        "half": list(rng.random(NUM).astype(np.float16)),
        "history": list(rng.random((NUM, 9)).astype(np.float32)),
        "image": list(rng.random((NUM, 6, 5, 2)).astype(np.float32)),
        "view": list(rng.normal(size=(NUM, 3, 4, 5)).astype(np.float32)),
        "volume": list(rng.random((NUM, 2, 3, 4, 2)).astype(np.float32)),
        "note": ["" if i == 3 else f"sämple {i}\n" * (i % 3 + 1) for i in range(NUM)],
        "hits": [rng.random((n, 3)).astype(np.float32) for n in lengths],
        "tags": [rng.integers(0, 9, n) for n in lengths[::-1]],
        "mesh.nodes": [rng.random((n, 4)).astype(np.float32) for n in nodes],
        "mesh.edges": [rng.integers(0, n, (2 * n, 2)) for n in nodes],
        "mesh.targets": list(rng.random((NUM, 2))),
        "inputs/x": list(rng.random(NUM)),
        "inputs/energy": list(rng.random(NUM)),
        "inputs/material": [("gold", "lead", "böhmium")[i % 3] for i in range(NUM)],
        "parameters/LEVEL": [3] * NUM,
    }
    return rows, values


def save_npz(path: Path, rows: np.ndarray, values: dict[str, list]) -> None:
    """All columns in one archive, ragged ones as values and offsets."""
    arrays = {"sample_id": rows}
    names = {"inputs/x": "x", "inputs/energy": "in_energy", "inputs/material": "material"}
    for name, column in values.items():
        key = names.get(name, name.rpartition("/")[2].lower())
        if name in RAGGED:
            arrays[f"{key}.values"] = np.concatenate(column)
            arrays[f"{key}.offsets"] = np.cumsum([0, *map(len, column)])
        else:
            arrays[key] = np.array(column)
    np.savez(path, **arrays)


def make_kinds(directory: Path) -> Made:
    """The data set in `directory`/data, from `directory`/kinds.npz."""
    rows, values = make_values()
    save_npz(directory / "kinds.npz", rows, values)
    import_data(
        [directory / "kinds.npz"], parse_import_schema(SCHEMA, Findings("schema")), directory / "data"
    )
    kept = [i for i in range(NUM) if i not in BAD]
    inside = {name: [column[i] for i in kept] for name, column in values.items()}
    return Made(directory / "data", rows[kept], inside)


def assert_same(found, expected) -> None:
    """Equal in value, type and shape."""
    if isinstance(expected, str):
        assert found == expected
        return
    found, expected = np.asarray(found), np.asarray(expected)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)
