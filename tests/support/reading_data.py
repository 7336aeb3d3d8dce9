"""A data set with fields of every kind and rows that are absent for every reason, and the values that it holds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from shard_study import FIELDS, ShardStudy, make_study, values_of

from merlin.plan.plan import PlannedField

NUM = 50
FAILED = (5, 30)
SKIPPED = (31,)
MISSING = (0, 21, 22)
FILTERED = (44,)
PRESENT = [t for t in range(NUM) if t not in (*FAILED, *SKIPPED, *MISSING, *FILTERED)]

RAGGED = (
    PlannedField(name="track", kind="ragged", ragged=True, dtype="float32", shape=(3,)),
    PlannedField(name="hits", kind="ragged", ragged=True, dtype="int64"),
    PlannedField(
        name="mesh.nodes", kind="ragged", ragged=True, dtype="float32", shape=(4,), graph="mesh", role="nodes"
    ),
    PlannedField(
        name="mesh.edges", kind="ragged", ragged=True, dtype="int64", shape=(2,), graph="mesh", role="edges"
    ),
    PlannedField(
        name="mesh.targets", kind="series", dtype="float64", shape=(2,), graph="mesh", role="targets"
    ),
)


def ragged_of(tasks: np.ndarray) -> dict[str, list]:
    """Items of each task; some have none."""
    values: dict[str, list] = {field.name: [] for field in RAGGED}
    for task in np.asarray(tasks).tolist():
        rng = np.random.default_rng(task)
        nodes = 1 + task % 4
        values["track"].append(rng.random((task % 7, 3)).astype(np.float32))
        values["hits"].append(rng.integers(0, 99, (task * 5) % 11))
        values["mesh.nodes"].append(rng.random((nodes, 4)).astype(np.float32))
        values["mesh.edges"].append(rng.integers(0, nodes, (task % 3, 2)))
        values["mesh.targets"].append(rng.random(2))
    return values


def make_reading_study(path: Path, *, with_ragged: bool = True, **more) -> ShardStudy:
    """A study whose every outcome occurs, collected but for its manifest."""
    fields = (*FIELDS, *RAGGED) if with_ragged else FIELDS
    study = make_study(path, num=NUM, fields=fields, valid=(f"count != {FILTERED[0]}",), **more)
    study.failures = {(0, task): f"trouble {task % 2}" for task in FAILED}
    study.skipped = {(0, task) for task in SKIPPED}
    study.not_run = {(0, task) for task in MISSING}
    for lo in range(0, NUM, 7):
        tasks = np.arange(lo, min(lo + 7, NUM))
        outputs = values_of(tasks)
        if with_ragged:
            for name, rows in ragged_of(tasks).items():
                outputs[name] = np.empty(len(tasks), object)
                outputs[name][:] = rows
                if name == "mesh.targets":
                    outputs[name] = np.array(rows)
        ok = np.array([t not in (*FAILED, *SKIPPED, *MISSING) for t in tasks.tolist()])
        assert not study.collect(lo, int(tasks[-1]) + 1, ok=ok, outputs=outputs)
    return study
