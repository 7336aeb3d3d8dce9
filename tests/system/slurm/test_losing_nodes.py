"""Nodes that go away: killed with all their processes, or cut off from Redis for longer than a lease."""

from __future__ import annotations

import random

from effort import repeats
from lines_study import LinesStudy
from waiting import wait_until

NUM_KILLS = repeats(5, 100)
NUM_CORES = 2  # of a node


def test_a_node_that_is_cut_off_for_longer_than_its_lease_does_nothing_twice(site):
    study = LinesStudy.publish(site, "N=60", "SHARD=20", "HOLD=30", held=True)
    job = site.submit_workers(study.spec, "--nodes=2")
    wait_until(lambda: len(site.live_workers()) == 2, site.describe)
    study.wait_for(60)
    (lost, kept) = (site.cluster.nodes[name] for name in ("node2", "node1"))
    lost.cut()
    # its chunks go to the other node, which ends them all
    study.let_go()
    study.wait_for_end()
    lost.mend()
    wait_until(lambda: len(site.live_workers()) == 2, site.describe)
    study.check()
    site.merlin("stop-workers", "--wait", "100")
    assert site.cluster.wait_until_over(job) == {job: "COMPLETED"}


def test_jobs_that_are_killed_while_they_work_cost_no_task(site):
    rng = random.Random(7)
    study = LinesStudy.publish(site, f"N={repeats(200, 2500)}", "SHARD=50", "HOLD=100", held=True)
    jobs = [site.submit_workers(study.spec, "--nodes=1") for _ in range(3)]
    for number in range(NUM_KILLS):
        before = study.num_ended
        wait_until(lambda: len(site.live_workers()) >= 2, site.describe)
        if study.num_ended < 200:
            wait_until(lambda before=before: study.num_ended > before, study.show)
        victim = rng.choice(jobs)
        site.cluster.run("scancel", "--signal=KILL", "--full", victim)
        jobs[jobs.index(victim)] = site.submit_workers(study.spec, "--nodes=1")
        print(f"kill {number}: {victim}")
    study.let_go()
    study.wait_for_end()
    study.check()
