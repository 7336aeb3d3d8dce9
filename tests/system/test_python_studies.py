"""Studies that a script runs, stops, goes on with and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_until

import merlin
from merlin.errors import WorkspaceError

SPEC = """\
description: {name: waves, description: d}
env: {variables: {N: 6, REPEAT: "false", NAP: 0}}
study:
  - name: measure
    run: {function: "waves:measure", canary: 0}
  - name: collect
    run: {depends: [measure], aggregate: {fields: {height: {units: m}}}}
  - name: look
    run: {cmd: "sleep $(NAP); test '$(REPEAT)' = true || test $(K) -ge 0"}
merlin:
  samples:
    generate: {method: grid, num: [$(N)], bounds: {K: [0, 5]}}
    column_labels: [K]
"""
FUNCTION = """\
from pathlib import Path


def measure(inputs, context):
    if (inputs["K"] == 3).any() and not Path("mended").exists():
        raise RuntimeError("three waves cancel out")
    return {"height": inputs["K"] ** 2}
"""
# without "if __name__ == '__main__'": a worker process that imported it would run the study again
SCRIPT = """\
import json
import pathlib
import threading

with open("imported", "a") as file:
    file.write("once\\n")
threading.Thread(target=threading.Event().wait, daemon=True).start()

import numpy as np
import merlin

seen = []
study = merlin.run("waves.yaml", vars={"REPEAT": True}, output="out", workers=2, progress=seen.append)
first = study.status()
told = {"first": [first.totals.ok, first.totals.failed], "causes": [group.cause for group in study.failures()]}
told["shown"] = seen[-1].per_step["measure"].ok

pathlib.Path("mended").touch()
again = study.restart(failed=True)
told["again"] = [again is study, study.status().state, study.data["height"][:].tolist()]

more = merlin.run("waves.yaml", vars={"REPEAT": True}, samples=np.arange(8.0)[:, None], extend=study, workers=1)
told["extended"] = [more is study, study.status().state, len(study.data), study.tasks().shape[0]]
same = merlin.run("waves.yaml", vars={"REPEAT": True}, samples=np.arange(8.0)[:, None], extend=study.path)
told["nothing to add"] = [str(same.path) == str(study.path), study.tasks().shape[0]]
print(json.dumps(told))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "waves.yaml").write_text(SPEC)
    (tmp_path / "waves.py").write_text(FUNCTION)
    return tmp_path


def script(folder: Path, text: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", text],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def test_a_script_runs_a_study_mends_it_and_adds_samples(folder: Path) -> None:
    (folder / "study.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "study.py"], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["first"] == [13, 1] and told["causes"] == ["RuntimeError: three waves cancel out"]
    assert told["shown"] == 5
    assert told["again"] == [True, "finished", [0.0, 1.0, 4.0, 9.0, 16.0, 25.0]]
    assert told["extended"] == [True, "finished", 8, 20]
    assert told["nothing to add"] == [True, 20]
    assert (folder / "imported").read_text() == "once\n", "no worker process has imported the script"


LONG = "import merlin\nmerlin.run('waves.yaml', vars={'NAP': 600}, output='out', workers=2)\n"


def started(folder: Path, run: subprocess.Popen[str]) -> merlin.Study:
    """The study, once two of its tasks sleep."""
    (plan,) = wait_until(lambda: list(folder.glob("out/waves_*/merlin_info/plan.json")), run)
    study = merlin.Study(plan.parents[1])
    wait_until(
        lambda: len(list(study.path.glob("look/*/*.out"))) > 0 and study.status().state == "running", run
    )
    return study


def test_ctrl_c_stops_the_study_and_then_the_script(folder: Path) -> None:
    run = script(folder, LONG)
    study = started(folder, run)
    run.send_signal(signal.SIGINT)
    _, said = run.communicate(timeout=120)
    assert (
        run.returncode == -signal.SIGINT and "KeyboardInterrupt: the study has stopped; go on with:" in said
    )
    assert study.status().state == "stopped" and "interrupted" in study.status().state_reason


def test_a_study_of_another_process_is_waited_for_and_cancelled(folder: Path) -> None:
    run = script(folder, LONG + "print('went on')\n")
    study = started(folder, run)
    with pytest.raises(TimeoutError):
        study.wait(timeout=0.5)
    study.cancel()
    out, _ = run.communicate(timeout=120)
    assert run.returncode != 0 and "went on" not in out
    assert study.wait(timeout=0).status().state == "stopped"
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _works_in(pid, study.path)]


HOLD = """
import signal, sys
from pathlib import Path
from merlin.base.locks import locked
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
with locked(Path(sys.argv[1]), wait=True):
    print("held", flush=True)
    signal.pause()
"""


def test_cancel_ends_no_process_that_does_more_than_to_run_the_study(folder: Path) -> None:
    thread = f"threading.Thread(target=exec, args=({LONG!r}, {{}}))"
    in_a_thread = f"import threading\nrun = {thread}\nrun.start()\nrun.join()\n"
    run = script(folder, in_a_thread)
    study = started(folder, run)
    with pytest.raises(WorkspaceError, match="stop it there"):
        study.cancel()
    assert run.poll() is None
    run.kill()
    run.communicate()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, study.path / "merlin_info/lock"], stdout=subprocess.PIPE
    )
    with holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        with pytest.raises(WorkspaceError, match=f"process {holder.pid}, which does other work"):
            study.cancel()
        assert holder.poll() is None
        holder.terminate()


def _works_in(pid: str, path: Path) -> bool:
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(path)
    except OSError:
        return False
