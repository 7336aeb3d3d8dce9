"""Two plans of a study, and what has become of the code of its steps between them."""

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from small_plans import plan

from merlin.plan.code_changes import code_changes
from merlin.plan.plan_io import plan_digest, plan_from_json, plan_to_json, relocate

names = st.sampled_from(["model.py", "in/deck.txt", "/shared/table.h5", "a b"])
digests = st.sampled_from(["0" * 64, "1" * 64])
codes = st.dictionaries(st.sampled_from("abc"), st.dictionaries(names, digests), max_size=3)


def with_code(**code):
    return plan(workspace="/data/study_1", code=code)


def test_every_change_of_a_file_is_a_line():
    old = with_code(a={"model.py": "1", "helper.py": "1", "same.py": "1"}, b={"x": "1"})
    new = with_code(a={"model.py": "2", "inputs/deck.txt": "1", "same.py": "1"}, b={"x": "1"})
    assert code_changes(old, new) == {
        "a": ["helper.py is gone", "inputs/deck.txt is new", "model.py has changed"]
    }


def test_a_step_without_a_record_has_not_changed():
    assert code_changes(plan(), with_code(a={"x": "1"})) == {}
    assert code_changes(with_code(a={"x": "1"}), plan()) == {}
    assert code_changes(with_code(b={"x": "1"}), with_code(a={"x": "1"})) == {}
    assert code_changes(with_code(a={}), with_code(a={"x": "1"})) == {"a": ["x is new"]}


@given(codes, codes)
def test_there_are_changes_if_the_records_differ_and_they_can_be_turned_round(old, new):
    there, back = (
        code_changes(with_code(**old), with_code(**new)),
        code_changes(with_code(**new), with_code(**old)),
    )
    assert set(there) == set(back) == {step for step in old.keys() & new.keys() if old[step] != new[step]}
    for step, lines in there.items():
        turned = [
            line.replace(" is gone", " is  new").replace(" is new", " is gone").replace("  ", " ")
            for line in lines
        ]
        assert turned == back[step]


@given(codes)
def test_the_record_survives_the_file_of_the_plan(code):
    made = with_code(**code)
    assert plan_from_json(plan_to_json(made)) == made
    assert (plan_digest(made) == plan_digest(plan())) == (not code)


def test_a_plan_without_a_record_is_written_and_proved_as_before_there_were_any():
    assert "code" not in json.loads(plan_to_json(plan()))
    data = asdict(relocate(plan(), "."))
    del data["code"]
    assert plan_digest(plan_from_json(plan_to_json(plan()))) == plan_digest(plan())
    assert (
        plan_from_json(json.dumps({"format": "merlin-plan", "version": 1, **data, "workspace": "/w"})).code
        == {}
    )
