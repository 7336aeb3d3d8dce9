"""Workers in allocations of a real Slurm: on every node, until they are cancelled, requeued or done."""

from __future__ import annotations

import json

from lines_study import LinesStudy
from slurm import NODES
from waiting import wait_until

HOUR_S = 3600


def test_workers_come_to_all_nodes_and_neither_scancel_nor_requeue_costs_a_retry(site):
    study = LinesStudy.publish(site, "N=60", "SHARD=20", "HOLD=0", held=True)  # no copy ends while it is held
    words = ("--scheduler", "slurm", "--nodes", "1", "--walltime", "01:00:00")
    submitted = json.loads(site.merlin("workers", "submit", study.workspace.path, *words, "--json").stdout)
    first = submitted["jobs"][0]["id"]
    second = site.submit_workers(study.spec, "--nodes=2")
    wait_until(lambda: len(site.live_workers()) == 3, site.describe)
    found = site.live_workers()
    assert sorted(worker["node"] for worker in found) == list(NODES)
    assert sorted((worker["job"] for worker in found), key=int) == [first, second, second]
    assert {(w["scheduler"], w["cores"], w["concurrency"]) for w in found} == {("slurm", 2, 2)}
    assert all(0 < worker["ends"] - worker["started"] < 2 * HOUR_S for worker in found)

    study.wait_for(60)
    site.cluster.run("scancel", second)
    assert site.cluster.wait_until_over(second) == {second: "CANCELLED"}
    site.cluster.requeue(first)
    study.let_go()
    study.wait_for_end()
    study.check()
    tasks = json.loads(site.merlin("detailed-status", study.workspace.path, "--json").stdout)
    assert {task["restarts"] for task in tasks} == {0}
    # a worker that was killed before it could leave is counted until its last sign of life is old
    wait_until(lambda: {worker["job"] for worker in site.live_workers()} <= {first}, site.describe)
    site.merlin("stop-workers", "--wait", "100")
    assert site.cluster.wait_until_over(first) == {first: "COMPLETED"}
