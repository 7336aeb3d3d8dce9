"""Workspaces: finding, opening, moving, locking."""

import hashlib
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from msgspec.structs import replace

from merlin.api.left_to_run import refuse_changed_samples
from merlin.errors import UsageError, WorkspaceError
from merlin.spec.load import load_spec
from merlin.workspace.directory import Workspace, open_workspace, workspace_stem
from merlin.workspace.holding import lock
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import prepare_study
from merlin.workspace.samples import save_samples

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


def test_of_a_damaged_plan_it_is_said_what_is_left(workspace):
    plan = workspace.info / "plan.json"
    plan.write_text(plan.read_text()[:300])
    with pytest.raises(WorkspaceError, match="the file is damaged") as error:
        open_workspace(workspace.path)
    todo = f"put it back as it was, or run its spec again, of which {workspace.info}/s.orig.yaml is a copy"
    assert error.value.__notes__ == [todo]
    (workspace.path / "b/P.1").mkdir(parents=True)
    (workspace.path / "b/P.1/manifest.json").touch()
    with pytest.raises(WorkspaceError) as error:
        open_workspace(workspace.path)
    data = f"its data sets can be read by their own directories: {workspace.path}/b/P.1"
    assert error.value.__notes__ == [f"{todo}; {data}"]


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


@pytest.mark.parametrize(
    ("name", "generate"),
    [
        ("samples.npy", "{method: sobol, num: 32, bounds: {X: [0, 1]}, seed: 1}"),
        ("samples.csv", "{method: uniform, num: 32, bounds: {X: [0, 1]}, seed: 1}"),
        ("samples.npy", "{cmd: cp samples.npy $(MERLIN_INFO)}"),
        ("samples.npy", ""),  # but --samplesfile
    ],
)
def test_samples_in_the_workspace_are_those_of_the_plan_wherever_it_is_moved(
    tmp_path, monkeypatch, name, generate
):
    monkeypatch.chdir(tmp_path)
    np.save("samples.npy", np.arange(32.0).reshape(32, 1))
    spec = (
        SPEC.replace("file: samples.npy", f"file: $(MERLIN_INFO)/{name}, generate: {generate}")
        if generate
        else SPEC
    )
    (tmp_path / "s.yaml").write_text(spec)
    options = StudyOptions(samples_file=None if generate else "samples.npy")
    path = prepare_study(load_spec(tmp_path / "s.yaml"), options).path
    moved = shutil.copytree(path, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    assert open_workspace(moved).samples().num == 32
    file = moved / "merlin_info" / name
    size = file.stat().st_size
    rows = (
        np.array([float(line) for line in file.read_text().split()[2:]])
        if name.endswith("csv")
        else np.load(file)
    )
    save_samples(file, rows.reshape(32, 1)[::-1], ["X"])
    assert file.stat().st_size == size
    with pytest.raises(WorkspaceError, match="its first 32 rows are not those"):
        open_workspace(moved).samples()
    file.unlink()
    with pytest.raises(WorkspaceError, match="merlin samples|cmd.sh" if generate else "does not exist"):
        refuse_changed_samples([open_workspace(moved)])


def test_digests_of_earlier_plans_count_as_they_were(workspace, tmp_path):
    digest = hashlib.sha256(np.arange(30.0).tobytes()).hexdigest()
    samples = replace(workspace.plan.samples, digest=digest, stamp="")
    assert Workspace(workspace.path, replace(workspace.plan, samples=samples)).samples().num == 30
    np.save(tmp_path / "samples.npy", np.ones((30, 1)))
    with pytest.raises(WorkspaceError, match="its first 30 rows are not those"):
        Workspace(workspace.path, replace(workspace.plan, samples=samples)).samples()
    samples = replace(samples, digest="")
    assert Workspace(workspace.path, replace(workspace.plan, samples=samples)).samples().num == 30


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
