"""A data set for trainers: every value shows its sample, whatever the kind of the field."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from shard_study import make_study

from merlin.plan.plan import PlannedField

NUM = 60
GONE = (0, 21, 22)  # tasks that did not run: rows and sample ids differ
IDS = np.array([i for i in range(NUM) if i not in GONE])

FIELDS = (
    PlannedField(name="energy"),
    PlannedField(name="gain", dtype="float32"),
    PlannedField(name="label", dtype="int32"),
    PlannedField(name="history", kind="series", dtype="float32", shape=(4,)),
    PlannedField(
        name="image", kind="image", dtype="float32", shape=(6, 5, 2), layout="hwc", axes=("y", "x", "channel")
    ),
    PlannedField(
        name="wide", kind="image", dtype="float64", shape=(3, 4, 5), layout="chw", axes=("channel", "y", "x")
    ),
    PlannedField(name="note", kind="text"),
)
VARIED = (
    PlannedField(name="track", kind="ragged", ragged=True, dtype="float64", shape=(3,)),
    PlannedField(
        name="mesh.nodes", kind="ragged", ragged=True, dtype="float32", shape=(2,), graph="mesh", role="nodes"
    ),
    PlannedField(
        name="mesh.edges", kind="ragged", ragged=True, dtype="int64", shape=(2,), graph="mesh", role="edges"
    ),
    PlannedField(
        name="mesh.targets", kind="series", dtype="float32", shape=(1,), graph="mesh", role="targets"
    ),
)


def values_of(ids: np.ndarray) -> dict[str, np.ndarray]:
    """The fields of fixed shape of samples `ids`."""
    t = np.asarray(ids, dtype=np.float64)
    spread = t[:, None, None, None]
    return {
        "energy": t * 0.5 + 1e6,
        "gain": (10.0 ** (t / 20)).astype(np.float32),
        "label": t.astype(np.int32) % 7,
        "history": (t[:, None] + np.arange(4)).astype(np.float32),
        "image": (spread + 100 * np.arange(60).reshape(6, 5, 2)).astype(np.float32),
        "wide": spread * np.array([1, 10, 100]).reshape(3, 1, 1) + np.arange(60).reshape(3, 4, 5),
        "note": np.array([f"sample {int(i)}" for i in t], dtype=object),
    }


def inputs_of(ids: np.ndarray) -> np.ndarray:
    return np.stack([2.0 * np.asarray(ids), 2.0 * np.asarray(ids) + 1], axis=1)


def track_of(sample: int) -> np.ndarray:
    return np.arange(3 * (sample % 5)).reshape(-1, 3) + sample


def mesh_of(sample: int) -> dict[str, np.ndarray]:
    """A ring of 2 to 5 nodes."""
    num = sample % 4 + 2
    node = np.arange(num)
    return {
        "nodes": (np.stack([node, node + sample], axis=1)).astype(np.float32),
        "edges": np.stack([node, (node + 1) % num], axis=1),
        "targets": np.array([sample], np.float32),
    }


def outputs_of(ids: np.ndarray) -> dict[str, np.ndarray]:
    def objects(rows):
        made = np.empty(len(rows), dtype=object)
        made[:] = rows
        return made

    meshes = [mesh_of(int(i)) for i in ids]
    varied = {f"mesh.{role}": objects([mesh[role] for mesh in meshes]) for role in ("nodes", "edges")}
    varied["mesh.targets"] = np.stack([mesh["targets"] for mesh in meshes])
    return {**values_of(ids), **varied, "track": objects([track_of(int(i)) for i in ids])}


def make_data(path: Path, *, fields=FIELDS + VARIED, outputs=outputs_of, **more) -> Path:
    """The directory of a finished data set."""
    study = make_study(path, num=NUM, fields=fields, **more)
    for source in range(len(study.sources)):
        study.not_run |= {(source, task) for task in GONE}
        for lo in range(0, NUM, 16):
            ids = np.arange(lo, min(lo + 16, NUM))
            study.collect(lo, int(ids[-1]) + 1, source=source, outputs=outputs(ids))
    assert not study.failures, study.failures
    return study.finish()
