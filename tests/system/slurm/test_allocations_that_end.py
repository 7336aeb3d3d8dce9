"""A study that outlives its allocations; it begins early, because Slurm has no walltime below a minute."""

from __future__ import annotations

import json

from lines_study import LinesStudy
from waiting import wait_until

NUM_CORES = 2  # of a node


def test_a_study_goes_through_two_allocations_that_end_in_the_middle_and_a_third_finishes_it(site):
    study = LinesStudy.publish(
        site, "N=60", "SHARD=20", "HOLD=30", held=True
    )  # half of the copies cannot end
    words = ("--scheduler", "slurm", "--nodes", "1", "--json")
    known = json.loads(
        site.merlin("workers", "submit", study.workspace.path, *words, "--walltime", "1:00").stdout
    )
    first = known["jobs"][0]["id"]
    by_hand = f"exec merlin run-workers {study.spec} --scheduler slurm --foreground"
    second = site.submit(by_hand, "--nodes=1", "--exclusive", "--time=1")
    wait_until(lambda: {w["job"] for w in site.live_workers()} == {first, second}, site.describe)
    ended = site.cluster.wait_until_over(first, second, limit_s=400)
    assert set(ended.values()) <= {"COMPLETED", "TIMEOUT"}
    assert study.num_ended < study.planned
    study.let_go()
    third = site.submit_workers(study.spec, "--nodes=1")
    study.wait_for_end()
    facts = study.check()
    assert facts.num_again <= 2 * NUM_CORES
    site.merlin("stop-workers", "--wait", "100")
    assert site.cluster.wait_until_over(third) == {third: "COMPLETED"}
