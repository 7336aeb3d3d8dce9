"""Workspaces: finding, opening, moving, locking."""

import os
import subprocess
import sys

import numpy as np
import pytest

from merlin.errors import UsageError, WorkspaceError
from merlin.spec.load import load_spec
from merlin.workspace.directory import open_workspace, workspace_stem
from merlin.workspace.holding import lock
from merlin.workspace.prepare import prepare_study

SPEC = """
description: {name: s, description: d}
study:
  - {name: a, description: d, run: {cmd: "echo $(X) $(P) > $(MERLIN_INFO)/x"}}
  - {name: b, description: d, run: {cmd: "ls $(a.workspace)", depends: [a_*]}}
global.parameters: {P: {values: [1], label: P.%%}}
merlin: {samples: {column_labels: [X], file: samples.npy}}
"""


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("samples.npy", np.arange(30.0).reshape(30, 1))
    (tmp_path / "s.yaml").write_text(SPEC)
    return prepare_study(load_spec(tmp_path / "s.yaml"))


def test_a_task_has_the_directory_of_its_sample(workspace):
    a, b = workspace.instance("a/P.1"), workspace.instance("b")
    assert workspace.task_dir(a, 26) == workspace.path / "a" / "P.1" / "01" / "01"
    assert workspace.task_dir(b, 0) == workspace.path / "b"
    assert workspace.sample_path(a, 0) == "00/00"


def test_an_unknown_instance_is_named(workspace):
    with pytest.raises(WorkspaceError, match="'c'"):
        workspace.instance("c")


def test_a_moved_workspace_opens_with_paths_to_its_new_place(workspace, tmp_path):
    moved = tmp_path / "elsewhere"
    workspace.path.rename(moved)
    found = open_workspace(moved)
    assert found.path == moved
    assert found.instance("a/P.1").command == f"echo $(X) 1 > {moved}/merlin_info/x"
    assert found.instance("b").command == f"ls {moved}/a"


def test_samples_that_changed_since_planning_are_noticed(workspace, tmp_path):
    np.save(tmp_path / "samples.npy", np.ones((3, 1)))
    with pytest.raises(WorkspaceError, match="3 samples, but the study was planned with 30"):
        open_workspace(workspace.path).samples()


def test_samples_with_other_values_than_planned_are_noticed(workspace, tmp_path):
    opened = open_workspace(workspace.path)
    assert opened.samples().num == 30
    np.save(tmp_path / "samples.npy", np.ones((30, 1)))
    os.utime(tmp_path / "samples.npy", (1, 1))  # the clock of file systems ticks some times per second
    for found in (opened, open_workspace(workspace.path)):
        with pytest.raises(WorkspaceError, match="its first 30 rows are not those"):
            found.samples()


def test_samples_that_were_written_again_as_they_were_are_the_same(workspace, tmp_path):
    np.save(tmp_path / "samples.npy", np.arange(30.0).reshape(30, 1))
    os.utime(tmp_path / "samples.npy", (1, 1))
    assert open_workspace(workspace.path).samples().num == 30


def test_other_directories_are_not_workspaces(tmp_path):
    with pytest.raises(WorkspaceError, match="not a directory"):
        open_workspace(tmp_path / "no")
    with pytest.raises(WorkspaceError, match="not a workspace"):
        open_workspace(tmp_path)
    (tmp_path / "merlin_info").mkdir()
    with pytest.raises(WorkspaceError, match="did not finish"):
        open_workspace(tmp_path)


def test_a_second_run_of_a_workspace_is_refused_by_name(workspace):
    refused = pytest.raises(WorkspaceError, match=f"pid {os.getpid()} ")
    with lock(workspace), refused, lock(open_workspace(workspace.path)):
        pass
    with lock(workspace):
        pass


def test_the_lock_of_a_killed_run_is_free(workspace):
    code = (
        "import sys; from merlin.workspace.directory import open_workspace; from merlin.workspace.holding import lock\n"
        "with lock(open_workspace(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", code, str(workspace.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert run.stdout.readline() == "held\n"
        with pytest.raises(WorkspaceError, match=f"pid {run.pid} "), lock(workspace):
            pass
    finally:
        run.kill()
        run.communicate()
    with lock(workspace):
        pass


@pytest.mark.parametrize("name", ["", " ", "a/b", ".", ".."])
def test_a_name_that_is_no_directory_name_is_refused(name):
    with pytest.raises(UsageError):
        workspace_stem(name)
