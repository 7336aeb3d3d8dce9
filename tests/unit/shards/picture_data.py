"""A small data set with every kind of field, a failed sample, a filtered one and one that did not run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from shard_study import ShardStudy, make_study

from merlin.plan.plan import PlannedField
from merlin.shards.writing.outputs import item_rows

NUM = 60
FAILED, FILTERED, MISSING = (7, 8), (20,), (59,)

FIELDS = (
    PlannedField(name="energy", units="J", description="what it costs"),
    PlannedField(name="count", dtype="int32"),
    PlannedField(name="time", kind="series", dtype="float32", shape=(8,), units="us"),
    PlannedField(name="trace", kind="series", dtype="float32", shape=(8,), units="V", axes=("time",)),
    PlannedField(name="pair", kind="series", shape=(8, 2), axes=("time", "channel"), channels=("left", "right")),
    PlannedField(name="image", kind="image", dtype="float32", shape=(2, 6, 9), layout="chw", axes=("channel", "y", "x"),
          channels=("soft", "hard"), units="W"),
    PlannedField(name="photo", kind="image", dtype="uint8", shape=(6, 9, 3), layout="hwc", axes=("y", "x", "channel")),
    PlannedField(name="density", kind="volume", dtype="float32", shape=(4, 5, 6), layout="dhw", axes=("z", "y", "x")),
    PlannedField(name="note", kind="text"),
)  # fmt: skip

RAGGED = (
    PlannedField(name="track", kind="series", ragged=True, units="mm"),
    PlannedField(name="mesh.nodes", kind="ragged", ragged=True, shape=(2,), graph="mesh", role="nodes"),
    PlannedField(
        name="mesh.positions", kind="ragged", ragged=True, shape=(3,), graph="mesh", role="positions"
    ),
    PlannedField(
        name="mesh.edges", kind="ragged", ragged=True, shape=(2,), dtype="int64", graph="mesh", role="edges"
    ),
    PlannedField(name="mesh.targets", kind="series", shape=(2,), graph="mesh", role="targets"),
)


def outputs_of(tasks: np.ndarray) -> dict[str, object]:
    t = tasks.astype(np.float64)
    n = len(t)
    axis = np.linspace(0, 1, 8)
    trace = np.sin(9 * axis + t[:, None] / 10)
    y, x = np.mgrid[-1:1:6j, -1:1:9j]
    blob = np.exp(-((x - t[:, None, None] / NUM) ** 2 + y**2)) * (1 + t[:, None, None])
    z = np.mgrid[-1:1:4j, -1:1:5j, -1:1:6j][0]
    return {
        "energy": 10 ** (t / 10),
        "count": (t % 5).astype(np.int32),
        "time": np.tile(axis, (n, 1)).astype(np.float32),
        "trace": trace.astype(np.float32),
        "pair": np.stack([trace, -trace], axis=-1),
        "image": np.stack([blob, blob - 2 * x], axis=1).astype(np.float32),
        "photo": (255 * np.stack([blob / blob.max()] * 3, axis=-1)).astype(np.uint8),
        "density": (z + t[:, None, None, None]).astype(np.float32),
        "note": np.array([f"sample {int(i)}" for i in t], dtype=object),
    }


def ragged_outputs_of(tasks: np.ndarray) -> dict[str, object]:
    rows: dict[str, list] = {"track": [], "mesh.nodes": [], "mesh.positions": [], "mesh.edges": []}
    for task in tasks.tolist():
        num = 3 + task % 7
        around = np.arange(num)
        rows["track"].append(np.arange(task % 11, dtype=np.float64))
        rows["mesh.nodes"].append(np.column_stack([around, around**2]).astype(np.float64))
        rows["mesh.positions"].append(np.column_stack([np.cos(around), np.sin(around), 0 * around]))
        rows["mesh.edges"].append(np.column_stack([around, (around + 1) % num]))
    items = {name: item_rows(arrays, len(tasks)) for name, arrays in rows.items()}
    return {**items, "mesh.targets": np.column_stack([tasks, tasks**2]).astype(np.float64)}


def make_data(
    path: Path, *, ragged: bool = False, fields: tuple[PlannedField, ...] = (), **more
) -> ShardStudy:
    """A finished study; its data set is at `.directory`."""
    fields = fields or FIELDS + RAGGED * ragged
    names = {field.name for field in fields}
    valid = ("count != 0 or energy != 100",) if {"count", "energy"} <= names else ()
    study = make_study(path, num=NUM, per_shard=25, fields=fields, valid=valid, **more)
    study.failures = {(0, task): "RuntimeError: it broke & burned" for task in FAILED}
    study.not_run = {(0, task) for task in MISSING}
    for source in range(len(study.sources)):
        for lo in range(0, NUM, 20):
            tasks = np.arange(lo, lo + 20)
            outputs = outputs_of(tasks) | (ragged_outputs_of(tasks) if ragged else {})
            ok = np.array([source > 0 or task not in FAILED for task in tasks])
            outputs = {name: values for name, values in outputs.items() if name in names}
            study.collect(lo, lo + 20, source=source, outputs=outputs, ok=ok)
    study.finish()
    return study
