from __future__ import annotations

from pathlib import Path

from growing_study import NUM, extend_study, make_study

from merlin.views.graph import Node, graph_of_all, listing, mermaid


def node(name: str, **sources: str) -> Node:
    return Node(step=name, kind="cmd", instances=1, tasks=10, after=sources)


def test_a_list_says_what_each_step_waits_for_and_how() -> None:
    assert listing([node("a"), node("b-1", a="all"), node("c", a="same", **{"b-1": "block"})]) == [
        "a  [10 tasks]",
        "b-1  [10 tasks]",
        "    after all of a",
        "c  [10 tasks]",
        "    sample by sample, after a",
        "    shard by shard, after b-1",
    ]


def test_mermaid_names_every_step_and_edge() -> None:
    text = mermaid([node("a"), node("b-1", a="all"), node("c", a="same", **{"b-1": "block"})])
    assert text.splitlines() == [
        "flowchart TD",
        '    n0_a["a<br/>10 tasks"]',
        '    n1_b_1["b-1<br/>10 tasks"]',
        '    n2_c["c<br/>10 tasks"]',
        "    n0_a ==> n1_b_1",
        "    n0_a --> n2_c",
        "    n1_b_1 -.-> n2_c",
    ]


def test_the_tasks_of_extensions_are_counted_with_those_of_their_study(tmp_path: Path) -> None:
    study = make_study(tmp_path / "study")
    extension = extend_study(study, num=5)
    nodes = graph_of_all([study.plan, extension.plan])
    assert {node.step: (node.tasks, node.instances) for node in nodes} == {
        "sim": (2 * (NUM + 5), 2), "post": (NUM + 5, 1), "end": (2, 1),
    }  # fmt: skip
