"""Workers in allocations of a real Slurm: on every node, until they are cancelled, requeued or done."""

from __future__ import annotations

import json

from lines_study import LinesStudy
from slurm import NODES
from waiting import wait_until

HOUR_S = 3600


def workers(site):
    return json.loads(site.merlin("query-workers", "--json").stdout)


def test_workers_come_to_every_node_of_an_allocation_and_finish_the_study(site):
    study = LinesStudy.publish(site, "N=60", "SHARD=20", held=True)
    job = site.submit_workers(study.spec, "--nodes=3")
    wait_until(lambda: len(workers(site)) == 3, site.describe)
    found = workers(site)
    assert sorted(worker["node"] for worker in found) == list(NODES)
    assert {(w["scheduler"], w["job"], w["cores"], w["concurrency"]) for w in found} == {("slurm", job, 2, 2)}
    submitted = (site.folder / f"slurm-{job}.out").stat().st_ctime
    assert all(0 < worker["ends"] - submitted < 2 * HOUR_S for worker in found)  # the script asks for an hour
    study.let_go()
    study.wait_for_end()
    facts = study.check()
    assert facts.num_again == 0
    site.merlin("stop-workers", "--wait", "100")
    assert site.cluster.wait_until_over(job) == {job: "COMPLETED"}


def test_a_cancelled_job_loses_nothing_and_a_requeued_one_costs_no_retry(site):
    study = LinesStudy.publish(site, "N=60", "SHARD=20", "HOLD=0", held=True)  # no copy ends while it is held
    first = site.submit_workers(study.spec, "--nodes=1", "--requeue")
    second = site.submit_workers(study.spec, "--nodes=2")
    wait_until(lambda: len(workers(site)) == 3, site.describe)
    study.wait_for(60)
    site.cluster.run("scancel", second)
    assert site.cluster.wait_until_over(second) == {second: "CANCELLED"}
    site.cluster.requeue(first)
    study.let_go()
    study.wait_for_end()
    study.check()
    tasks = json.loads(site.merlin("detailed-status", study.workspace.path, "--json").stdout)
    assert {task["restarts"] for task in tasks} == {0}
    site.merlin("stop-workers", "--wait", "100")
    assert site.cluster.wait_until_over(first) == {first: "COMPLETED"}
