"""Cores and GPUs of chunks: what they get, and what other processes of the machine see of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small_plans import plan, step

from merlin.batch.devices import CUDA, ROCR, ZE, listed_devices
from merlin.errors import ExecutionError
from merlin.execution.assignment import Assignment
from merlin.execution.machine import Machine, this_machine
from merlin.execution.places import Places, places_for
from merlin.plan.plan import StepInstance, StepKind

EIGHT = Machine(cores=tuple(range(8)), gpus=("4", "5"))


def wants(**resources: Any) -> StepInstance:
    return step("a", 3, resources={key.replace("_", " "): value for key, value in resources.items()})


def places(folder: Path, machine: Machine = EIGHT) -> Places:
    return Places(machine, 0, folder / "locks")


def test_two_workers_of_one_machine_pin_their_tasks_to_different_cores(tmp_path: Path) -> None:
    ours, theirs = places(tmp_path), places(tmp_path)
    assert ours.assign("1", wants(procs=3)).cores == (0, 1, 2)
    assert theirs.assign("1", wants(procs=4)).cores == (3, 4, 5, 6)
    assert theirs.assign("2", wants(procs=2)).cores == ()  # it runs, and stays on no core
    ours.release("1")
    theirs.release("2")
    assert theirs.assign("3", wants(procs=2)).cores == (0, 1)


def test_a_task_that_asks_for_no_cores_is_not_pinned(tmp_path: Path) -> None:
    assert places(tmp_path).assign("1", wants(walltime="1:00")) == Assignment()


def test_a_task_gets_its_devices_by_the_variable_of_the_machine(tmp_path: Path) -> None:
    machine = Machine(cores=(0, 1), gpus=("GPU-a", "GPU-b"), gpu_variables=(ROCR,))
    here = places(tmp_path, machine)
    assert here.assign("1", wants(gpus=0.5)).variables == {ROCR: "GPU-a"}
    assert here.assign("2", wants(gpus=1)).variables == {ROCR: "GPU-b"}
    here.release("2")
    here.release("2")  # once more: nothing happens
    assert here.assign("3", wants(gpus=1)).gpus == ("GPU-b",)


def test_a_function_that_uses_a_gpu_keeps_it_in_its_process(tmp_path: Path) -> None:
    function = step("f", 3, kind=StepKind.FUNCTION, resources={"gpus": 1})
    assert places(tmp_path).assign("1", function).keeps_gpus
    assert not places(tmp_path).assign("2", wants(gpus=1)).keeps_gpus


def test_a_directory_of_somebody_else_locks_nothing(tmp_path: Path) -> None:
    (tmp_path / "locks").symlink_to(tmp_path)
    assert places(tmp_path).assign("1", wants(procs=2)).cores == ()


def test_a_study_that_asks_for_nothing_has_no_places() -> None:
    assert places_for(plan(step("a", 3), wants(procs=1, nodes=1)), {}, 4) is None
    assert places_for(plan(step("a", 3), wants(procs=2)), {}, 4) is not None


def test_in_an_allocation_programs_share_a_node_unless_their_task_has_it_alone(tmp_path: Path) -> None:
    here = places_for(plan(step("a", 3)), {"SLURM_JOB_ID": "31"}, 4)
    assert here is not None
    assert here.assign("1", wants(procs=1)).variables == {"SLURM_EXACT": "1"}
    here.release("1")
    assert here.assign("2", wants(exclusive=True)).variables == {}


def test_gpus_that_are_not_here_are_an_error_and_too_many_cores_a_note(tmp_path: Path) -> None:
    here = places(tmp_path)
    with pytest.raises(
        ExecutionError, match="step 'a' needs 4 GPUs for each task, and this machine has only 4, 5"
    ):
        here.check([wants(gpus=4)])
    assert here.check([wants(procs=8)]) == []
    (note,) = here.check([wants(procs=64)])
    assert "asks for 64 cores" in note


def test_an_assignment_is_in_force_for_what_starts_and_for_nothing_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CUDA, "0,1")
    monkeypatch.delenv(ZE, raising=False)
    before = os.sched_getaffinity(0)
    one = min(before)
    with Assignment(cores=(one,), variables={CUDA: "1", ZE: "0"}).in_force():
        assert os.sched_getaffinity(0) == {one}
        assert (os.environ.pop(CUDA), os.environ.pop(ZE)) == ("1", "0")  # a function may do that
    assert os.sched_getaffinity(0) == before
    assert os.environ[CUDA] == "0,1"
    assert ZE not in os.environ
    with Assignment(cores=(99_999,)).in_force():  # a core that the system has taken away
        assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0,1", ("0", "1")),
        (" 2 , GPU-8932f937-d72c ", ("2", "GPU-8932f937-d72c")),
        ("0.0,0.1", ("0.0", "0.1")),
        ("", ()),
        ("-1", ()),
        ("NoDevFiles", ()),
        ("0,-1,1", ("0",)),
        ("0,0", ("0",)),
        ("0,\x1b[31m", ("0",)),
    ],
)
def test_devices_are_listed_as_the_drivers_read_them(text: str, expected: tuple[str, ...]) -> None:
    assert listed_devices(text) == expected


def test_the_environment_says_which_devices_may_be_used() -> None:
    assert this_machine({CUDA: "1,3"}).gpus == ("1", "3")
    found = this_machine({CUDA: "0,1", ROCR: "2"})
    assert (found.gpus, found.gpu_variables) == (("2",), (ROCR,))
    if not list(Path("/sys/class/kfd").glob("*/*/nodes/*")):
        assert this_machine({CUDA: "0,1", ROCR: "0,1"}).gpu_variables == (ROCR, CUDA)  # as Slurm sets them
    assert found.cores == tuple(sorted(os.sched_getaffinity(0)))
