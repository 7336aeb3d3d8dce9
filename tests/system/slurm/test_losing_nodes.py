"""Nodes that go away: killed with all their processes, or cut off from Redis for longer than a lease."""

from __future__ import annotations

import random

from effort import repeats
from lines_study import LinesStudy
from waiting import wait_until

NUM_KILLS = repeats(3, 100)


def test_a_node_that_is_cut_off_for_longer_than_its_lease_does_nothing_twice(site):
    study = LinesStudy.publish(site, "N=60", "SHARD=20", "HOLD=30", held=True)
    job = site.submit_workers(study.spec, "--nodes=2")
    wait_until(lambda: len(site.live_workers()) == 2, site.describe)
    study.wait_for(60)
    lost = site.cluster.nodes["node2"]
    lost.cut()
    # its chunks go to the other node, which ends them all
    study.let_go()
    study.wait_for_end()
    lost.mend()
    wait_until(lambda: len(site.live_workers()) == 2, site.describe)
    study.check()
    site.merlin("stop-workers", "--wait", "100")
    assert site.cluster.wait_until_over(job) == {job: "COMPLETED"}


def jobs_at_work(site, jobs):
    """Those that have a worker, as soon as one has."""
    return wait_until(lambda: sorted(jobs & {worker["job"] for worker in site.live_workers()}), site.describe)


def test_jobs_that_are_killed_while_they_work_cost_no_task(site):
    rng = random.Random(7)
    num, last = repeats(120, 5000), repeats(105, 4900)
    study = LinesStudy.publish(
        site, f"N={num}", "SHARD=60", f"HOLD={last}", held=True
    )  # it outlives the kills
    jobs = {site.submit_workers(study.spec, "--nodes=1") for _ in range(3)}
    for number in range(NUM_KILLS):
        study.wait_for((num + last) * number // NUM_KILLS)
        victim = rng.choice(jobs_at_work(site, jobs))
        site.cluster.run("scancel", "--signal=KILL", "--full", victim)
        jobs = jobs - {victim} | {site.submit_workers(study.spec, "--nodes=1")}
    study.let_go()
    study.wait_for_end()
    study.check()
