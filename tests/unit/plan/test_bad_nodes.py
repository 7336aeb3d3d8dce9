"""Which nodes are bad, and which only look so."""

from __future__ import annotations

import random

from effort import repeats
from hypothesis import given
from hypothesis import strategies as st
from small_plans import plan, step

from merlin.plan.bad_nodes import CHANCE, MIN_FAILURES, BadNodes
from merlin.plan.owner import Owner
from merlin.plan.reports import ChunkReport
from merlin.plan.schedule import Scheduler
from merlin.plan.tasks import Chunk, ChunkResult, Outcome

OK, FAILED, SOFT = int(Outcome.OK), int(Outcome.FAILED), int(Outcome.SOFT_FAILED)


def ends(nodes: BadNodes, node: str, first: int, num: int, outcome: int, name: str = "sim") -> list[str]:
    return nodes.ended(node, name, name, [(first, first + num, outcome)])


def test_a_node_on_which_samples_fail_that_succeed_elsewhere_is_bad() -> None:
    nodes = BadNodes()
    assert not ends(nodes, "good", 0, 20, OK)
    assert [ends(nodes, "bad", i, 1, FAILED) for i in range(20, 23)] == [[], [], ["bad"]]
    assert nodes.quarantined == {"bad": "sim"}
    assert nodes.failed_on("bad") == {"sim": [(20, 23)]}
    assert not ends(nodes, "bad", 30, 9, FAILED), "it is known"


def test_it_is_found_when_others_succeed_later() -> None:
    nodes = BadNodes()
    assert not ends(nodes, "bad", 0, 500, FAILED) and nodes.is_on_one_node("sim")
    assert ends(nodes, "good", 500, 1, OK) == ["bad"] and not nodes.is_on_one_node("sim")


def test_the_same_sample_over_and_over_blames_nobody() -> None:
    nodes = BadNodes()
    ends(nodes, "good", 0, 1000, OK)
    assert not any(ends(nodes, "bad", 7, 1, FAILED) for _ in range(20))


def test_one_that_ends_ok_in_between_shows_that_a_node_works() -> None:
    nodes = BadNodes()
    ends(nodes, "good", 0, 1000, OK)
    for i in range(1000, 1100, 2):
        assert not nodes.ended("n", "sim", "sim", [(i, i + 1, FAILED), (i + 1, i + 2, OK)])


def test_samples_that_fail_by_their_own_choice_and_unknown_nodes_count_for_nothing() -> None:
    nodes = BadNodes()
    ends(nodes, "good", 0, 1000, OK)
    assert not ends(nodes, "bad", 1000, 99, SOFT) and not ends(nodes, "", 2000, 99, FAILED)


def test_success_in_another_step_is_no_comparison() -> None:
    nodes = BadNodes()
    ends(nodes, "good", 0, 1000, OK, "other")
    assert not ends(nodes, "bad", 0, 99, FAILED)


def test_a_node_that_an_earlier_owner_has_found_stays_bad() -> None:
    assert BadNodes({"bad": "sim"}).quarantined == {"bad": "sim"}


def blamed(seed: int, num_nodes: int, rate: float) -> int:
    """How many nodes are called bad in a study of which samples fail at this rate, wherever they run."""
    draw, nodes = random.Random(seed), BadNodes()
    for node in range(num_nodes):  # what each has done so far, then all of them in turn
        nodes.ended(
            f"n{node}", "sim", "s", [(i, i + 1, FAILED if draw.random() < rate else OK) for i in range(20)]
        )
    for i in range(200):
        ends(nodes, f"n{i % num_nodes}", i, 1, FAILED if draw.random() < rate else OK)
    return len(nodes.quarantined)


def test_a_step_of_which_samples_fail_everywhere_blames_a_node_in_fewer_than_one_of_a_hundred_studies() -> (
    None
):
    for rate in (0.3, 0.6, 0.9):
        found = [
            blamed(seed, num_nodes, rate) for num_nodes in (2, 3, 5) for seed in range(repeats(100, 1000))
        ]
        assert sum(found) < CHANCE * len(found)
    assert not any(blamed(seed, 4, 1.0) for seed in range(20))


@given(st.integers(0, 2**32), st.integers(2, 6))
def test_a_bad_node_among_good_ones_is_found_and_no_other(seed: int, num_nodes: int) -> None:
    draw, nodes = random.Random(seed), BadNodes()
    for i in range(100 * num_nodes):
        node = draw.randrange(num_nodes)
        ends(nodes, f"n{node}", i, 1, FAILED if node == 0 else OK)
    assert set(nodes.quarantined) == {"n0"}
    assert sum(b - a for a, b in nodes.failed_on("n0")["sim"]) >= MIN_FAILURES


# ----------------------------------------------------------------------- the owner


def report(chunk: Chunk, node: str, outcome: int) -> ChunkReport:
    result = ChunkResult(chunk=chunk, runs=((chunk.lo, chunk.hi, outcome),), busy_s=9.0)
    return ChunkReport(chunk=chunk, worker="w", node=node, result=result)


def take(owner: Owner) -> Chunk:
    (chunk,) = owner.offers({"merlin": 1}, 0.0, 1)
    owner.taken(chunk.lease)
    return chunk


def test_what_fails_on_a_bad_node_runs_again_and_new_offers_avoid_it() -> None:
    owner = Owner(Scheduler(plan(step("sim", 500)), {}, num_workers=500), min_chunk_s=3.0)
    for node, outcome, num in (("good", OK, 20), ("bad", FAILED, 4)):
        for _ in range(num):
            owner.reported(report(take(owner), node, outcome), (), 0.0)
    counts = owner.scheduler.counts()["sim"]
    assert (counts.ok, counts.failed, counts.queued) == (20, 2, 1)
    assert take(owner).avoid == ("bad",)


def canary_owner() -> Owner:
    return Owner(Scheduler(plan(step("sim", 500, canary=3)), {}, num_workers=500), min_chunk_s=3.0)


def test_a_canary_waits_for_other_nodes_to_try() -> None:
    for nodes, is_stopped in (({"bad", "other"}, False), ({"bad"}, True)):
        owner = canary_owner()
        owner.nodes = {"merlin": nodes}
        for _ in range(5):
            if not owner.scheduler.stop_reason:
                owner.reported(report(take(owner), "bad", FAILED), (), 0.0)
        assert bool(owner.scheduler.stop_reason) == is_stopped
    owner = canary_owner()
    owner.nodes = {"merlin": {"a", "b"}}
    for i in range(3):
        owner.reported(report(take(owner), "ab"[i % 2], FAILED), (), 0.0)
    assert owner.scheduler.stop_reason


def test_a_canary_waits_a_minute_for_nodes_of_a_job_that_have_no_workers_yet() -> None:
    owner = canary_owner()
    owner.nodes, owner.awaited = {"merlin": {"bad"}}, {"merlin"}
    for now in (0.0, 1.0, 2.0, 59.0):
        owner.reported(report(take(owner), "bad", FAILED), (), now)
    assert not owner.scheduler.stop_reason
    owner.reported(report(take(owner), "bad", FAILED), (), 61.0)
    assert owner.scheduler.stop_reason.startswith("canary")
