"""What an owner is told about the nodes of its workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.distributed.workforce import Workforce


def worker(job: str, node: str, *, num_nodes: int = 1) -> WorkerInfo:
    return WorkerInfo(
        name=f"{job}@{node}", host=node, pid=1, queues=["merlin"], concurrency=1, started=0.0, version="1",
        scheduler="slurm" if job else "", job=job, node=node if job else "", num_nodes=num_nodes,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("workers", "awaited"),
    [
        ([worker("", "here")], False),
        ([worker("7", "n1")], False),
        ([worker("7", "n1", num_nodes=2)], True),
        ([worker("7", "n1", num_nodes=2), worker("7", "n1", num_nodes=2)], True),
        ([worker("7", "n1", num_nodes=2), worker("7", "n2", num_nodes=2)], False),
        ([worker("7", "n1", num_nodes=2), worker("8", "n2")], True),
    ],
)
def test_nodes_of_a_job_that_have_no_worker_yet_are_awaited(workers: list[WorkerInfo], awaited: bool) -> None:
    registry = SimpleNamespace(workers=lambda: workers, publish_work=lambda *_: None)
    tools: Any = SimpleNamespace(
        backend=SimpleNamespace(registry=registry), config=SimpleNamespace(queue_name=lambda queue: queue)
    )
    scheduler = SimpleNamespace(open_work=dict)
    bad = SimpleNamespace(quarantined={})
    owner: Any = SimpleNamespace(nodes={}, awaited=set(), bad_nodes=bad, scheduler=scheduler)
    Workforce(cast(Any, SimpleNamespace(id="s", queues=["merlin"])), tools).count(owner)
    assert owner.nodes == {"merlin": {w.node or w.host for w in workers}}
    assert owner.awaited == ({"merlin"} if awaited else set())
