"""The plan file: round trips, refusals, and moved workspaces."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from small_plans import plan

from merlin.errors import WorkspaceError
from merlin.plan.plan import Aggregate, Edge, PlannedField, SamplesInfo, StepInstance, StepKind
from merlin.plan.plan_io import plan_digest, plan_from_json, plan_to_json, read_plan, relocate, write_plan

words = st.text(st.characters(codec="utf-8"), max_size=12)
scalars = words | st.integers() | st.booleans() | st.floats(allow_nan=False)
fields = st.builds(
    PlannedField,
    name=words,
    kind=st.sampled_from(["scalar", "image"]),
    shape=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    output=st.none() | words,
    axes=st.lists(words, max_size=2).map(tuple),
)
aggregates = st.builds(
    Aggregate,
    sources=st.lists(words, max_size=2).map(tuple),
    fields=st.lists(fields, max_size=2).map(tuple),
    splits=st.lists(st.tuples(words, st.floats(0, 1)), max_size=3).map(tuple),
)
edges = st.builds(Edge, source=words, kind=st.sampled_from(["same", "all", "block"]), group=words)
instances = st.builds(
    StepInstance,
    id=words,
    step=words,
    kind=st.sampled_from(StepKind),
    num_tasks=st.integers(0, 10**9),
    per_sample=st.booleans(),
    params=st.dictionaries(words, scalars, max_size=2),
    command=words,
    restart=st.none() | words,
    aggregate=st.none() | aggregates,
    feeds=st.lists(words, max_size=2).map(tuple),
    same_workspaces=st.dictionaries(words, words, max_size=2),
    timeout_s=st.none() | st.floats(0, 1e6),
    resources=st.dictionaries(words, scalars, max_size=2),
    edges=st.lists(edges, max_size=3).map(tuple),
)
infos = st.builds(SamplesInfo, file=words, num=st.integers(0, 10**9), labels=st.lists(words).map(tuple))


def make_plan(**changes):
    return replace(plan(workspace="/data/study_1"), **changes)


@settings(deadline=None)
@given(
    st.lists(instances, max_size=3).map(tuple), st.none() | infos, st.dictionaries(words, scalars, max_size=3)
)
def test_a_plan_survives_its_file(found, samples, variables):
    plan = make_plan(instances=found, samples=samples, variables=variables)
    assert plan_from_json(plan_to_json(plan)) == plan
    assert plan_digest(plan_from_json(plan_to_json(plan))) == plan_digest(plan)


def test_a_written_plan_is_read_back_and_leaves_no_other_file(tmp_path):
    write_plan(tmp_path / "plan.json", make_plan())
    assert read_plan(tmp_path / "plan.json") == make_plan()
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"version": 99}, "version 99 is unknown"),
        ({"format": "other"}, "not a plan"),
        ({"instances": [{}]}, "expected content"),
        ({"surprise": 1}, "expected content"),
    ],
)
def test_other_files_are_refused(change, words):
    data = {**json.loads(plan_to_json(make_plan())), **change}
    with pytest.raises(WorkspaceError, match=f"here.json: .*{words}"):
        plan_from_json(json.dumps(data), "here.json")


def test_a_cut_file_is_called_damaged():
    with pytest.raises(WorkspaceError, match="damaged"):
        plan_from_json(plan_to_json(make_plan())[:-20], "plan.json")


def test_a_moved_workspace_takes_its_paths_along_and_leaves_others():
    step = StepInstance(
        id="a",
        step="a",
        kind=StepKind.CMD,
        num_tasks=1,
        per_sample=False,
        command="cat /data/study_1/b/x /data/study_10/x /data/study_1; ls '/data/study_1'",
    )
    plan = make_plan(instances=(step,), variables={"OUT": "/data/study_1/out", "N": 3})
    moved = relocate(plan, "/mnt/x")
    assert moved.instances[0].command == "cat /mnt/x/b/x /data/study_10/x /mnt/x; ls '/mnt/x'"
    assert moved.variables == {"OUT": "/mnt/x/out", "N": 3}
    assert plan_digest(moved) == plan_digest(plan)
    assert relocate(moved, "/data/study_1") == plan


def test_the_digest_changes_with_the_content():
    assert plan_digest(make_plan(seed=1)) != plan_digest(make_plan())
