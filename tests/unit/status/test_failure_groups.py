from __future__ import annotations

import pytest
from small_plans import step
from status_study import FAILED, OK, add, chunk, failed, fill, make_workspace

from merlin.cli.advice import shown_inputs
from merlin.execution.functions import cause_of
from merlin.execution.shell import timeout_cause
from merlin.ledger.signature import normalise, signature_of
from merlin.plan.failure_limits import cause_of_loss, cause_of_overrun
from merlin.status.failures import exit_class, failed_tasks, group_failures
from merlin.workspace.directory import open_workspace


def test_failures_are_grouped_by_step_kind_and_normalised_last_line(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    groups = group_failures(workspace)
    assert [(g.step, g.exit_class, g.signature, g.count, g.hosts) for g in groups] == [
        ("sim", "exit code 3", "ValueError: bad <n>", 2, ("node1",)),
        ("post", "crash", "killed its worker <n> times", 1, ("node1",)),
        ("sim", "timeout", "timeout after <n> s", 1, ("node1",)),
    ]


def test_a_group_has_examples_a_tail_and_the_line_to_rerun_it(tmp_path):
    workspace = make_workspace(tmp_path / "my study")
    fill(workspace)
    (workspace.path / "sim" / "P.1" / "03").mkdir(parents=True)
    group = group_failures(workspace)[0]
    assert [(e.instance, e.task, e.sample_id) for e in group.examples] == [
        ("sim/P.1", 3, 3),
        ("sim/P.1", 4, 4),
    ]
    assert group.examples[0].directory == str(workspace.path / "sim" / "P.1" / "03")
    assert group.examples[1].directory == ""
    assert group.log_tail == "step 3\nValueError: bad 3"
    assert group.rerun == f"merlin failures '{workspace.path}' --group {group.id} --rerun"
    assert failed_tasks(workspace, groups=[group.id]) == {"sim/P.1": [(3, 5)]}
    assert (group.first, group.last) == (1010.0, 1010.0)


def test_examples_have_the_inputs_that_they_ran_with(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    first = group_failures(workspace)[0].examples[0]
    assert first.inputs == {"P": 1, "X0": 6.0, "step": 7.0}
    assert shown_inputs(first.inputs) == "P=1 X0=6.0 step=7.0"
    (workspace.path / "merlin_info/samples.npy").unlink()
    assert group_failures(open_workspace(workspace.path))[0].examples[0].inputs == {"P": 1}


def test_long_inputs_are_cut():
    shown = shown_inputs({f"X{i}": "a" * 100 for i in range(20)})
    assert shown.endswith("… and 8 more")
    assert len(shown) < 700


def test_what_a_function_left_is_the_log_of_its_step(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    logs = workspace.instance_dir(workspace.instance("sim/P.1")) / "logs"
    logs.mkdir(parents=True)
    assert {e.directory for e in group_failures(workspace)[0].examples} == {str(logs)}


def test_the_tail_comes_from_the_tasks_files_when_the_ledger_has_none(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    add(workspace, chunk("post", 7, [FAILED], failures=(failed(7),)))
    directory = workspace.task_dir(workspace.instance("post"), 7)
    directory.mkdir(parents=True)
    (directory / "post.err").write_text("one\ntwo\n")
    assert group_failures(workspace)[0].log_tail == "one\ntwo"


def test_a_failure_that_was_repaired_by_a_later_run_is_not_listed(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    add(workspace, chunk("post", 0, [FAILED] * 4, failures=tuple(failed(i) for i in range(4))))
    add(workspace, chunk("post", 1, [OK, OK]), session="run2")
    (group,) = group_failures(workspace)
    assert (group.count, [e.task for e in group.examples]) == (2, [0, 3])


def test_only_the_steps_asked_for_are_listed(tmp_path):
    workspace = make_workspace(tmp_path / "w")
    fill(workspace)
    assert {g.step for g in group_failures(workspace, steps=("post",))} == {"post"}


@pytest.mark.parametrize(
    ("cause", "exit_code", "expected"),
    [
        ("exit code 7", 7, "exit code 7"),
        ("hard failure (exit code 102)", 102, "exit code 102 (HARD_FAIL)"),
        ("exit code 1", 1, "exit code 1"),
        ("", 1, "exit code 1"),
        ("killed by signal 11", -11, "signal 11 (SIGSEGV)"),
        (timeout_cause(3), -9, "timeout"),
        (cause_of_overrun(2, "01:00:00"), 0, "timeout"),
        ("field 'te': expected shape (3,), found (4,)", 0, "bad output"),
        ("graph 'mesh': 3 edges, and 2 weights", 0, "bad output"),
        (cause_of_loss(step("sim", 1), 3, "SIGSEGV", infrastructure=False), 0, "crash"),
        (cause_of_loss(step("sim", 1), 10, "", infrastructure=True), 0, "crash"),
        ("cancelled: merlin cancel --step sim", 0, "cancelled"),
        (cause_of(ValueError("negative pressure")), 1, "exception"),
        (cause_of(RuntimeError("the inner solver timed out; timeout after 3 s")), 1, "exception"),
        (cause_of(RuntimeError("simulation crashed, exit code 1")), 1, "exception"),
        (cause_of(OSError("bad output: field 'te'")), 1, "exception"),
    ],
)
def test_the_kind_of_end_is_told_from_cause_and_exit_code(cause, exit_code, expected):
    assert exit_class(cause, exit_code) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("bad value 3.5e-7 at step 12", "bad value -17 at step 9"),
        ("cannot open /scratch/u1/run_3/a.h5: no space", "cannot open /tmp/b: no space"),
        ("segfault at 0x7fff12ab", "segfault at 0xdeadbeef"),
        ("\x1b[31mError\x1b[0m: job 4", "Error: job 5"),
        ("2026-01-02T03:04:05.123Z fatal", "2026-11-12 23:04:05,1 fatal"),
        (
            "[03:04:05] lost 0a1b2c3d-0000-1111-2222-333344445555",
            "[13:04:06] lost ffffffff-1234-1111-2222-333344445555",
        ),
    ],
)
def test_lines_that_differ_in_numbers_and_paths_have_one_signature(one, other):
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    "after",
    [
        "srun: error: n7: task 0: Exited with exit code 1",
        "Aborted (core dumped)",
        "-----",
        "*** STEP ENDED ***",
    ],
)
def test_what_a_launcher_says_at_the_end_is_not_the_cause(after):
    assert signature_of(f"step 3\nno convergence after 30\n{after}\n") == "no convergence after <n>"
    assert signature_of(after) == normalise(after)


def test_lines_that_differ_in_words_have_different_signatures():
    assert normalise("KeyError: 'pressure'") != normalise("KeyError: 'density'")
