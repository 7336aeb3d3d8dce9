"""Function steps: one call per chunk, one per sample where that does not work."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_plans import step
from study_on_disk import make_workspace

from merlin.execution.runner import ChunkRunner
from merlin.ledger.replay import replay
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan import Aggregate, PlannedField, StepInstance, StepKind
from merlin.plan.tasks import Chunk, ChunkResult, Outcome

OK, FAILED = Outcome.OK, Outcome.FAILED


class Calls:
    """A function step over ten samples, its source text beside the spec."""

    def __init__(self, root: Path, source: str, *others: StepInstance, **more: Any) -> None:
        self.module = f"simulation_{root.name}".replace("-", "_").replace("[", "_").replace("]", "_")
        (root / f"{self.module}.py").write_text("import os, sys\nimport numpy as np\n" + source)
        more.setdefault("function", f"{self.module}:simulate")
        self.workspace = make_workspace(root, step("s", 10, kind=StepKind.FUNCTION, **more), *others)
        self.ledger = LedgerWriter(self.workspace.ledger_dir, "w0")
        self.runner = ChunkRunner(self.workspace, "w0", self.ledger)

    def run(self, lo: int = 0, hi: int = 10, instance: str = "s", **more: Any) -> ChunkResult:
        return self.runner.run(Chunk(instance=instance, lo=lo, hi=hi, **more))

    def causes(self) -> dict[int, Any]:
        found = replay(self.workspace.ledger_dir, self.workspace.plan).failures()
        return {f.task: f for f in (getattr(x, "failure", x) for x in found)}

    def log(self) -> str:
        return (self.workspace.path / "s/logs/w0.out").read_text()

    def num_records(self) -> int:
        return sum(1 for _ in replay(self.workspace.ledger_dir, self.workspace.plan).records())


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Any]:
    made: list[Calls] = []

    def make(source: str, *others: StepInstance, **more: Any) -> Calls:
        made.append(Calls(tmp_path, source, *others, **more))
        return made[-1]

    path = list(sys.path)
    yield make
    sys.path[:] = path
    for calls in made:
        calls.runner.close()
        calls.ledger.close()


def test_a_function_gets_arrays_for_the_whole_chunk(make: Any) -> None:
    calls = make(
        "def simulate(inputs, context):\n"
        "    print(inputs['X'].tolist(), inputs['P'], context.sample_ids.tolist(), context.chunk)\n"
        "    os.system('echo from below')\n"
        "    return {}\n",
        params={"P": 3},
    )
    assert calls.run(2, 5).runs == ((2, 5, OK),)
    assert calls.log() == "[2.0, 3.0, 4.0] 3 [2, 3, 4] (2, 5)\nfrom below\n"


def test_a_function_is_imported_once(make: Any) -> None:
    calls = make("print('loaded')\ndef simulate(inputs, context):\n    return {}\n")
    calls.run(0, 5)
    calls.run(5, 10)
    assert calls.log() == "loaded\n"


def test_one_bad_sample_costs_one_sample(make: Any) -> None:
    calls = make(
        "def simulate(inputs, context):\n"
        "    if (inputs['X'] == 3).any():\n        raise ValueError('negative pressure')\n"
        "    return {'y': inputs['X'] * 2}\n"
    )
    assert calls.run().runs == ((0, 3, OK), (3, 4, FAILED), (4, 10, OK))
    failure = calls.causes()[3]
    assert failure.cause == "ValueError: negative pressure"
    assert "Traceback" in failure.tail
    assert "in simulate" in failure.tail


@pytest.mark.parametrize(
    ("result", "cause"),
    [
        ("None", "bad result: returned NoneType; return a dict of arrays, one row per sample"),
        ("{'y': 1.0}", "bad result: 'y' has shape (); its first axis must be 1, one row per sample"),
        (
            "{'y': np.zeros(7)}",
            "bad result: 'y' has shape (7,); its first axis must be 1, one row per sample",
        ),
        ("{3: np.zeros(1)}", "bad result: returned the key 3; names of outputs are text"),
        ("sys.exit('no')", "SystemExit: no"),
    ],
)
def test_a_result_of_the_wrong_form_fails_with_a_plain_cause(make: Any, result: str, cause: str) -> None:
    calls = make(f"def simulate(inputs, context):\n    return {result}\n")
    assert calls.run(0, 2).runs == ((0, 2, FAILED),)
    assert calls.causes()[1].cause == cause


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        ("no_such_module:f", "cannot import no_such_module:f: ModuleNotFoundError"),
        ("no colon", "write it as module:callable"),
        ("os:nothing_there", "AttributeError"),
        ("os:name", "is not callable"),
    ],
)
def test_a_function_that_cannot_be_imported_fails_its_tasks(make: Any, function: str, cause: str) -> None:
    calls = make("", function=function)
    assert calls.run().runs == ((0, 10, FAILED),)
    assert cause in calls.causes()[9].cause


def test_a_module_that_fails_to_load_leaves_its_traceback(make: Any) -> None:
    calls = make("1 / 0\n")
    assert calls.run().runs == ((0, 10, FAILED),)
    assert "ZeroDivisionError" in calls.causes()[0].cause
    assert "1 / 0" in calls.causes()[0].tail


def test_holes_are_not_computed(make: Any) -> None:
    calls = make(
        "def simulate(inputs, context):\n    print(inputs['X'].tolist())\n    return {'y': inputs['X']}\n"
    )
    assert calls.run(0, 6, holes=((1, 4),)).runs == ((0, 1, OK), (4, 6, OK))
    assert calls.log() == "[0.0, 4.0, 5.0]\n"


def test_an_isolated_chunk_commits_every_sample_by_itself(make: Any) -> None:
    calls = make("def simulate(inputs, context):\n    return {'y': inputs['X']}\n")
    calls.run(0, 3, isolate=True)
    assert calls.num_records() == 3


def test_a_crash_in_an_isolated_chunk_costs_only_its_sample(make: Any) -> None:
    calls = make(
        "def simulate(inputs, context):\n    if inputs['X'][0] == 2:\n        os._exit(9)\n    return {}\n"
    )
    pid = os.fork()
    if pid == 0:
        try:
            calls.run(0, 5, isolate=True)
        finally:
            os._exit(0)  # whatever happens, the child does not go on with the tests
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    outcomes = replay(calls.workspace.ledger_dir, calls.workspace.plan).outcomes["s"]
    assert list(outcomes.runs()) == [(0, 2, OK), (2, 10, 255)]


def test_random_numbers_do_not_depend_on_the_chunk(make: Any) -> None:
    calls = make(
        "def simulate(inputs, context):\n"
        "    for i, g in zip(context.sample_ids, context.generators()):\n        print(i, g.random())\n"
        "    return {}\n"
    )
    calls.run(0, 10)
    whole = calls.log().splitlines()
    calls.run(0, 4, attempt=2)
    calls.run(4, 10, attempt=2)
    assert calls.log().splitlines()[10:] == whole
    assert len({line.split()[1] for line in whole}) == 10


def test_a_call_cannot_spoil_the_inputs_of_the_next_one(make: Any) -> None:
    calls = make(
        "def simulate(inputs, context):\n    print(inputs['X'].tolist())\n    inputs['X'] += 5\n"
        "    1 / (len(inputs['X']) - 2)\n    return {}\n"
    )
    calls.run(0, 2)
    assert calls.log() == "[0.0, 1.0]\n[0.0]\n[1.0]\n"


def test_outputs_are_collected_and_a_bad_one_fails_its_sample(make: Any) -> None:
    block = Aggregate(sources=("s",), fields=(PlannedField(name="y", output="y"),), samples_per_shard=10)
    aggregate = StepInstance(
        id="a", step="a", kind=StepKind.AGGREGATE, num_tasks=1, per_sample=False, aggregate=block
    )
    calls = make(
        "def simulate(inputs, context):\n    return {'y': np.where(inputs['X'] == 4, np.nan, inputs['X'])}\n",
        aggregate,
        feeds=("a",),
    )
    assert calls.run().runs == ((0, 4, OK), (4, 5, FAILED), (5, 10, OK))
    assert calls.run(0, 1, "a", absent_rows=((4, 5),)).runs == ((0, 1, OK),)


def test_outputs_that_nobody_collects_are_kept(make: Any) -> None:
    calls = make("def simulate(inputs, context):\n    return {'y': inputs['X']}\n")
    assert calls.run().runs == ((0, 10, OK),)
    assert len(list((calls.workspace.path / "s/outputs").iterdir())) == 1


def test_samples_whose_outputs_do_not_fit_together_fail(make: Any) -> None:
    calls = make(
        "def simulate(inputs, context):\n"
        "    if len(inputs['X']) > 1:\n        raise RuntimeError\n"
        "    return {'y': np.zeros((1, 3 if inputs['X'][0] == 1 else 2))}\n"
    )
    assert calls.run(0, 3).runs == ((0, 1, OK), (1, 2, FAILED), (2, 3, OK))
    assert "'y' has shape (3,) where other samples have (2,)" in calls.causes()[1].cause
