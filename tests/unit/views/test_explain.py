"""What `merlin workers explain` makes of one look at a study."""

from __future__ import annotations

from pathlib import Path

from merlin.plan.bad_nodes import why_quarantined
from merlin.plan.task_states import TaskCounts
from merlin.views.explain import Asked, of_study
from merlin.views.watch import Look

PATH = Path("/w/study")
ASKED = Asked(path=PATH, queues=("q",), clients=(), records=())
RUNNING = TaskCounts(planned=9, ok=3, failed=0, skipped=0, running=1, ready=5, waiting=0, queued=0)


def test_each_bad_node_is_named_once_with_the_step_the_reason_and_what_to_do() -> None:
    bad = {"n2": "sim", "n1": "post"}
    told = tuple(why_quarantined(node, step) for node, step in bad.items())  # by the owner, to everybody
    look = Look(state="running", per_step={"sim": RUNNING}, short_of_time=told, bad_nodes=bad)
    first, second = of_study(ASKED, PATH, look)
    assert "node n1" in first.what
    assert "'post'" in first.what
    assert "node n2" in second.what
    assert "elsewhere" in second.what
    assert f"merlin failures {PATH}" in second.remedy
    assert f"merlin restart {PATH}" in second.remedy


def test_without_a_bad_node_or_another_obstacle_there_is_nothing_to_say() -> None:
    assert not list(of_study(ASKED, PATH, Look(state="running", per_step={"sim": RUNNING})))
