"""Function steps in worker processes that they can kill."""

from __future__ import annotations

from pathlib import Path

from small_plans import step
from study_on_disk import make_workspace, processes_of

from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.ledger.replay import replay
from merlin.plan.plan import StepKind

MODULE = """
import os, signal

def simulate(inputs, context):
    if 17.0 in inputs["X"]:
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"y": inputs["X"] ** 2}
"""


def test_a_segfaulting_sample_costs_only_itself(tmp_path: Path) -> None:
    (tmp_path / "segfaulting_model.py").write_text(MODULE)
    sim = step("sim", 200, kind=StepKind.FUNCTION, function="segfaulting_model:simulate", crash_limit=2)
    workspace = make_workspace(tmp_path, sim)
    summary = run_embedded(workspace, RunOptions(workers=2), Observer())
    assert (summary.ok, summary.failed, summary.missing) == (199, 1, 0)
    (failed,) = replay(workspace.ledger_dir, workspace.plan).failures()
    assert failed.failure.task == 17
    assert failed.failure.cause == "killed its worker 2 times when it ran alone (SIGSEGV)"
    *_, call, error, log = failed.failure.tail.splitlines()
    assert log.startswith("log: merlin_info/logs/w") and call.endswith("in simulate")
    assert error == "Fatal Python error: Segmentation fault"
    logs = [path.read_text() for path in (workspace.info / "logs").glob("*.err")]
    assert sum("Fatal Python error: Segmentation fault" in log and "in run" in log for log in logs) >= 2
    assert processes_of(workspace) == []
