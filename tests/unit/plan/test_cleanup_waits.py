"""Who needs the files of a step's samples, and how the plan waits for them before clean-up."""

from __future__ import annotations

from pathlib import Path

import pytest

from merlin.plan.cleanup import needed_by
from merlin.plan.expand import make_plan
from merlin.plan.parameters import combinations
from merlin.spec.load import load_spec

HEAD = """\
description: {name: demo, description: d}
merlin:
  samples:
    generate: {method: uniform, num: 10, bounds: {x: [0, 1]}}
    column_labels: [x]
study:
- name: sim
  run: {cmd: "echo $(x) > o.json"}
"""
COLLECT = """\
- name: collect
  run: {depends: [sim], aggregate: {%s fields: {e: {file: o.json, key: e}}}}
"""


def plan_of(tmp_path: Path, text: str):
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    spec = load_spec(path)
    return make_plan(
        spec, workspace=tmp_path / "demo_20260101-000000", num_samples=10, samples_file="s.npy",
        combos=combinations(spec.document), created="2026-01-01T00:00:00+00:00", study_id="s",
    )  # fmt: skip


def edges_of(plan, id):
    return [(edge.source, edge.kind) for edge in next(i for i in plan.instances if i.id == id).edges]


def test_a_manifest_waits_for_its_shards_alone(tmp_path):
    for option in ("cleanup: true,", ""):
        plan = plan_of(tmp_path, HEAD + COLLECT % option)
        assert edges_of(plan, "collect.manifest") == [("collect", "all")]


@pytest.mark.parametrize("depends", ["sim", "sim_*"])
def test_with_clean_up_it_waits_for_steps_that_follow_the_source(tmp_path, depends):
    later = f"- name: post\n  run: {{cmd: 'cat $(x)', depends: [{depends}]}}\n"
    other = "- name: apart\n  run: {cmd: 'true'}\n"
    plan = plan_of(tmp_path, HEAD + COLLECT % "cleanup: true," + later + other)
    assert edges_of(plan, "collect.manifest") == [("collect", "all"), ("post", "all")]
    order = [instance.id for instance in plan.instances]
    assert order.index("post") < order.index("collect.manifest")
    assert {edge.group for edge in plan.instances[-1].edges} <= {"collect"}


def test_a_step_that_names_the_directory_is_waited_for_and_one_with_a_similar_name_is_not(tmp_path):
    later = (
        "- name: report\n  run: {cmd: 'ls $(sim.workspace)/', depends: [other_*]}\n"
        "- name: other\n  run: {cmd: 'echo $(x)'}\n"
        "- name: simple\n  run: {cmd: 'ls $(simulation.workspace)', depends: [simulation_*]}\n"
        "- name: simulation\n  run: {cmd: 'echo'}\n"
    )
    plan = plan_of(tmp_path, HEAD + COLLECT % "cleanup: true," + later)
    assert edges_of(plan, "collect.manifest") == [("collect", "all"), ("report", "all")]


def test_two_data_sets_wait_for_each_others_shards(tmp_path):
    second = (COLLECT % "cleanup: true,").replace("name: collect", "name: second")
    plan = plan_of(tmp_path, HEAD + COLLECT % "cleanup: true," + second)
    assert edges_of(plan, "collect.manifest") == [("collect", "all"), ("second", "all")]
    assert edges_of(plan, "second.manifest") == [("second", "all"), ("collect", "all")]


def test_a_step_after_the_data_set_is_not_waited_for_but_counts(tmp_path):
    later = "- name: train\n  run: {cmd: 'ls $(sim.workspace)', depends: [collect]}\n"
    plan = plan_of(tmp_path, HEAD + COLLECT % "cleanup: true," + later)
    assert edges_of(plan, "collect.manifest") == [("collect", "all")]
    instances = {instance.id: instance for instance in plan.instances}
    assert needed_by(instances, "collect", plan.workspace) == {"sim": ["train"]}


def test_without_clean_up_the_order_of_the_steps_stays(tmp_path):
    later = "- name: b\n  run: {cmd: 'echo $(x)', depends: [sim]}\n- name: a\n  run: {cmd: 'true'}\n"
    plan = plan_of(tmp_path, HEAD + later + COLLECT % "")
    assert [instance.id for instance in plan.instances] == ["sim", "b", "a", "collect", "collect.manifest"]
