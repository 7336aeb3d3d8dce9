"""Small studies written by hand into a folder, without a spec."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from commands import WarmCommand
from live_processes import live_processes
from small_plans import plan

from merlin.execution.pool import LOGS_DIR
from merlin.plan.plan import SamplesInfo, StepInstance
from merlin.plan.plan_io import write_plan
from merlin.workspace.directory import Workspace, open_workspace


def make_workspace(root: Path, *instances: StepInstance, **more: Any) -> Workspace:
    """A workspace in `root`, where its spec would be."""
    return write_study(
        root / "study_20260101-000000",
        *instances,
        spec_path=str(root / "spec.yaml"),
        spec_root=str(root),
        **more,
    )


def write_study(
    path: Path, *instances: StepInstance, labels: tuple[str, ...] = ("X",), first: int = 0, **more: Any
) -> Workspace:
    """A prepared workspace in which nothing has run yet; the values of its samples count up from `first`.

    `more` are fields of its plan. There are as many samples as the longest step has tasks.
    """
    num = max(i.num_tasks for i in instances)
    info = path / "merlin_info"
    info.mkdir(parents=True)
    values = first + np.arange(num * len(labels), dtype=np.float64).reshape(num, len(labels))
    np.save(info / "samples.npy", values)
    samples = SamplesInfo(file="merlin_info/samples.npy", num=num, labels=labels, first=first)
    usual = {
        "name": "study",
        "study_id": "s1",
        "created": "2026-01-01T00:00:00+00:00",
        "spec_path": "study.yaml",
    }
    made = plan(*instances, workspace=str(path), samples=samples, **(usual | {"spec_root": "/"} | more))
    write_plan(info / "plan.json", made)
    return open_workspace(path)


RUN = """
import json, sys
from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.workspace.directory import open_workspace
# a worker that a busy machine keeps from stopping is not killed, which would cost what it has not written down yet
options = RunOptions(workers=int(sys.argv[2]), grace_s=100.0)
summary = run_embedded(open_workspace(sys.argv[1]), options, Observer())
names = ("planned", "ok", "failed", "skipped", "missing", "stop_reason")
print(json.dumps({name: getattr(summary, name) for name in names}))
"""


def start_run(workspace: Workspace) -> subprocess.Popen[str]:
    """Start the command as users do; returns its process, in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", *_words(workspace, 2)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
    )


def start_warm_run(workspace: Workspace, *, workers: int = 2) -> WarmCommand:
    """Start the command from modules that are loaded already; `processes_of` finds it by its directory."""
    return WarmCommand("code", _words(workspace, workers), cwd=workspace.path)


def _words(workspace: Workspace, workers: int) -> list[str]:
    return [RUN, str(workspace.path), str(workers)]


def end_of(run: WarmCommand, limit_s: float = 120.0) -> dict[str, Any]:
    """Wait for the end of the command; returns what it printed."""
    out, err = run.communicate(timeout=limit_s)
    assert run.returncode == 0, err
    summary: dict[str, Any] = json.loads(out)
    return summary


def processes_of(workspace: Workspace) -> list[str]:
    """Command lines of live processes that name the workspace, work inside it, or write their log there."""
    return [
        str(process)
        for process in live_processes()
        if process.pid != os.getpid()
        and (
            str(workspace.path) in process.line
            or process.folder.is_relative_to(workspace.path)
            or _logs_into(process.pid, workspace)
        )
    ]


def workers_of(workspace: Workspace) -> list[int]:
    """Process ids of the workspace's workers; each leads a session, other than a task that is about to begin in it."""
    found = (int(p.split()[0]) for p in processes_of(workspace))
    return [pid for pid in found if _logs_into(pid, workspace) and _leads_session(pid)]


def _logs_into(pid: int, workspace: Workspace) -> bool:
    """Whether the process is a worker, whose standard error goes to the logs; a task's goes to its directory."""
    try:
        return Path(f"/proc/{pid}/fd/2").readlink().parent == workspace.info / LOGS_DIR
    except OSError:
        return False


def _leads_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
