from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from merlin.cli.drawing import draw
from merlin.cli.graph import Node, mermaid


def node(name: str, **sources: str) -> Node:
    return Node(name=name, kind="cmd", num_instances=1, num_tasks=10, sources=sources)


def test_a_chain_is_drawn_from_top_to_bottom_with_arrows() -> None:
    assert draw([node("a"), node("b", a="same"), node("c", b="all")]).splitlines() == [
        "╭───────────╮",
        "│     a     │",
        "│  10 tasks │",
        "╰───────────╯",
        "      ▼",
        "╭───────────╮",
        "│     b     │",
        "│  10 tasks │",
        "╰───────────╯",
        "      ▽",
        "╭───────────╮",
        "│     c     │",
        "│  10 tasks │",
        "╰───────────╯",
    ]


def test_a_fork_opens_and_closes_again() -> None:
    text = draw([node("a"), node("b", a="same"), node("c", a="same"), node("d", b="all", c="all")])
    assert text.count("▼") == 2
    assert text.count("▽") == 1


def test_a_graph_that_is_too_wide_becomes_a_list() -> None:
    nodes = [node("root"), *(node(f"leaf{k}", root="same") for k in range(20))]
    lines = draw(nodes, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert "    ◂ root (sample by sample)" in lines


@st.composite
def graphs(draw_: st.DrawFn) -> list[Node]:
    nodes: list[Node] = []
    for k in range(draw_(st.integers(1, 9))):
        names = [n.name for n in nodes]
        chosen = draw_(st.lists(st.sampled_from(names), unique=True, max_size=4)) if names else []
        kinds = {name: draw_(st.sampled_from(["same", "all", "block"])) for name in chosen}
        nodes.append(node(f"step{k}", **kinds))
    return nodes


@given(graphs(), st.integers(20, 200))
def test_every_step_appears_once_and_every_waiting_step_has_one_arrowhead(
    nodes: list[Node], width: int
) -> None:
    text = draw(nodes, width=width)
    assert text == draw(nodes, width=width)
    if "◂" not in text and "╭" in text:
        assert max(map(len, text.splitlines())) <= width
        assert text.count("▼") + text.count("▽") == sum(bool(n.sources) for n in nodes)
        assert text.count("╭") == len(nodes)
    for n in nodes:
        assert n.name in text


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
