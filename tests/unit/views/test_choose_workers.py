from __future__ import annotations

import pytest

from merlin.errors import UsageError
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.workers import WorkerFilter, choose_workers


def worker(name: str, *queues: str) -> WorkerInfo:
    return WorkerInfo(
        name=f"celery@{name}", host="h", pid=1, concurrency=1, started=0.0, version="",
        queues=[f"[merlin]_{queue}" for queue in queues],
    )  # fmt: skip


WORKERS = [worker("sim.node1", "hot"), worker("sim-2.node1", "hot", "cold"), worker("simple.node2", "cold")]


def chosen(**wanted) -> list[str]:
    return [w.name.removeprefix("celery@") for w in choose_workers(WORKERS, WorkerFilter(**wanted))]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["sim.node1", "sim-2.node1", "simple.node2"]),
        ({"queues": ["hot"]}, ["sim.node1", "sim-2.node1"]),
        ({"queues": ["[merlin]_hot", "nothing"]}, ["sim.node1", "sim-2.node1"]),
        ({"queues": ["nothing"]}, []),
        ({"patterns": ["^celery@simp"]}, ["simple.node2"]),
        ({"patterns": ["node1", "node2"]}, ["sim.node1", "sim-2.node1", "simple.node2"]),
        ({"patterns": ["node2"], "queues": ["hot"]}, []),
        ({"spec": {"sim": ["hot"]}}, ["sim.node1", "sim-2.node1"]),
        ({"spec": {"sim": ["cold"]}}, ["sim-2.node1"]),
        ({"spec": {"other": ["hot"]}}, []),
        ({"spec": {"other": ["hot"]}, "patterns": ["simple"]}, ["simple.node2"]),
    ],
)
def test_filters_must_all_hold_and_names_may_come_from_either_side(wanted, expected):
    assert chosen(**wanted) == expected


def test_a_pattern_that_is_none_is_explained():
    with pytest.raises(UsageError, match=r"'\('"):
        chosen(patterns=["("])
