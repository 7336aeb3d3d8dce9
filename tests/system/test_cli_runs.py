"""The real command, on real files: what it prints, what it leaves behind and how it exits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import WarmCommand, WarmProcess
from commands import run_merlin as merlin
from waiting import wait_until

SQUARES = """
description: {name: squares, description: none}
env: {variables: {N: 12, BAD: -1}}
study:
  - name: simulate
    run:
      cmd: |
        test $(MERLIN_SAMPLE_ID) != $(BAD) || exit 1
        echo '{"y": $(X)}' > out.json
  - name: check
    run:
      cmd: test -s $(simulate.workspace)/$(MERLIN_SAMPLE_PATH)/out.json
      depends: [simulate]
  - name: collect
    run:
      depends: [simulate_*]
      aggregate: {from: simulate, samples_per_shard: 5, fields: {y: {file: out.json, key: y}}}
merlin:
  samples:
    generate: {method: uniform, num: $(N), bounds: {X: [0, 1]}}
    column_labels: [X]
"""

SLOW = """
description: {name: slow, description: none}
study:
  - name: quick
    run: {cmd: "true"}
  - name: wait
    run:
      depends: [quick]
      cmd: |
        touch started
        test -e $(SPECROOT)/go || sleep 600
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "squares.yaml"
    path.write_text(SQUARES)
    return path


def workspace_in(folder: Path) -> Path:
    (found,) = (path.parent for path in folder.glob("*/merlin_info"))
    return found


def test_a_run_where_all_is_well_exits_with_0_and_reconciles(spec: Path, tmp_path: Path) -> None:
    done = merlin("run", spec, "--local", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workspace = workspace_in(tmp_path)
    assert (done.stdout + done.stderr).count(f"workspace {workspace}\n") == 1
    assert "planned 28 = ok 28 + failed 0 + skipped 0 + missing 0" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert len(list((workspace / "simulate").rglob("MERLIN_FINISHED"))) == 12
    assert (workspace / "collect/manifest.json").is_file()
    verified = merlin("shards", "verify", workspace, cwd=tmp_path)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_failure_exits_with_1_and_is_kept_out_of_what_follows(spec: Path, tmp_path: Path) -> None:
    done = merlin("run", spec, "--vars", "BAD=3", "N=12", "--json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    counts = {key: report[key] for key in ("planned", "ok", "failed", "skipped", "missing")}
    assert counts == {"planned": 28, "ok": 26, "failed": 1, "skipped": 1, "missing": 0}
    assert report["exit_code"] == 1
    (group,) = report["failures"]
    assert group["step"] == "simulate"
    workspace = workspace_in(tmp_path)
    assert not (workspace / "check/03/check.sh").exists()
    again = merlin("restart", workspace, "--json", cwd=tmp_path)
    assert again.returncode == 1
    assert json.loads(again.stdout)["failed"] == 1
    answer = merlin(
        "sql", workspace, "select sample_id from tasks where outcome = 'failed'", "--json", cwd=tmp_path
    )
    assert json.loads(answer.stdout) == [{"sample_id": 3}]
    explained = json.loads(merlin("failures", workspace, "--json", cwd=tmp_path).stdout)
    assert len(explained) == 1


def test_the_second_restart_with_failed_mends_what_was_mended(spec: Path, tmp_path: Path) -> None:
    spec.write_text(
        SQUARES.replace(
            "test $(MERLIN_SAMPLE_ID) != $(BAD)", "test $(MERLIN_SAMPLE_ID) != 3 -o -e $(SPECROOT)/mended"
        )
    )
    assert merlin("run", spec, cwd=tmp_path).returncode == 1
    workspace = workspace_in(tmp_path)
    kept = merlin("restart", workspace, "--failed", "--step", "check", cwd=tmp_path)
    wanted = f"1 task was skipped because of others that failed: merlin restart {workspace} --failed --step simulate\n"
    assert (kept.returncode, wanted in kept.stdout) == (1, True), kept.stdout
    (tmp_path / "mended").touch()
    same = merlin("restart", workspace, cwd=tmp_path)
    assert (same.returncode, "has changed since" in same.stderr) == (1, False)
    spec.write_text(spec.read_text() + "\n# mended\n")
    edited = merlin("restart", workspace, cwd=tmp_path)
    assert f"to apply it: merlin run {spec} --update {workspace}" in edited.stderr
    done = merlin("restart", workspace, "--failed", "--step", "simulate", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 28


def test_status_finds_the_newest_workspace_of_a_spec(spec: Path, tmp_path: Path) -> None:
    empty = merlin("status", spec, cwd=tmp_path)
    assert empty.returncode == 1
    assert "merlin run" in empty.stderr
    assert merlin("run", spec, cwd=tmp_path).returncode == 0
    workspace = workspace_in(tmp_path)
    done = merlin("status", spec, "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["workspace"] == str(workspace)
    assert merlin("status", workspace, "--dump", "s.csv", cwd=tmp_path).returncode == 0
    assert (tmp_path / "s.csv").read_text().count("\n") == 4
    assert merlin("status", workspace, "--dump", "s.json", cwd=tmp_path).returncode == 0
    (document,) = json.loads((tmp_path / "s.json").read_text()).values()
    assert document["state"] == "finished"
    assert merlin("status", workspace, "--dump", "s.txt", cwd=tmp_path).returncode == 2
    assert "#" in merlin("status", workspace, "--cb-help", cwd=tmp_path).stdout


def test_detailed_status_filters_as_upstream_does(spec: Path, tmp_path: Path) -> None:
    assert merlin("run", spec, "--vars", "BAD=3", cwd=tmp_path).returncode == 1
    workspace = workspace_in(tmp_path)
    rows = json.loads(
        merlin(
            "detailed-status", "--task-status", "failed", "CANCELLED", "--json", workspace, cwd=tmp_path
        ).stdout
    )
    assert sorted((row["step"], row["task"]) for row in rows) == [("check", 3), ("simulate", 3)]
    rows = json.loads(
        merlin(
            "detailed-status", "--steps", "check", "--max-tasks", "5", workspace, "--json", cwd=tmp_path
        ).stdout
    )
    assert len(rows) == 5
    text = merlin(
        "detailed-status", workspace, "--return-code", "SOFT_FAIL", "--layout", "table", cwd=tmp_path
    )
    assert "simulate/03" in text.stdout


def test_a_dry_run_writes_scripts_and_runs_nothing(spec: Path, tmp_path: Path) -> None:
    done = merlin("run", spec, "--dry", "--local", "--no-errors", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    workspace = workspace_in(tmp_path)
    assert len(list((workspace / "simulate").rglob("simulate.sh"))) == 12
    assert not list(workspace.rglob("MERLIN_FINISHED"))
    assert not list(workspace.rglob("*.out"))
    assert "test 07 !=" not in (workspace / "simulate/07/simulate.sh").read_text()
    assert "test 7 != -1" in (workspace / "simulate/07/simulate.sh").read_text()


def test_a_wrong_spec_exits_with_2_and_makes_no_workspace(spec: Path, tmp_path: Path) -> None:
    spec.write_text(
        SQUARES.replace("depends: [simulate]", "depends: [simulat]").replace(
            "samples_per_shard", "shard_size"
        )
    )
    for argv in (["run", spec], ["validate", spec], ["plan", spec]):
        done = merlin(*argv, cwd=tmp_path)
        assert done.returncode == 2
        text = done.stdout + done.stderr
        assert "squares.yaml:11:" in text or "squares.yaml:12:" in text, text
        assert "simulat" in text
        assert "shard_size" in text
        assert "Traceback" not in text
    assert not list(tmp_path.glob("*/merlin_info"))
    found = json.loads(merlin("validate", spec, "--json", cwd=tmp_path).stdout)
    assert found["valid"] is False
    assert len(found["diagnostics"]) >= 2


def test_validate_accepts_a_good_spec(spec: Path, tmp_path: Path) -> None:
    done = merlin("validate", spec, cwd=tmp_path)
    assert done.returncode == 0
    assert "valid" in done.stdout
    assert json.loads(merlin("validate", spec, "--json", cwd=tmp_path).stdout)["summary"]["tasks"] == 28


def test_plan_counts_what_the_run_then_makes(spec: Path, tmp_path: Path) -> None:
    facts = json.loads(merlin("plan", spec, "--vars", "N=60", "--json", cwd=tmp_path).stdout)["forecast"]
    assert facts["num_samples"] == 60
    assert facts["num_shards"] == 12
    assert not list(tmp_path.glob("*/merlin_info"))
    assert merlin("run", spec, "--vars", "N=60", cwd=tmp_path).returncode == 0
    simulate = workspace_in(tmp_path) / "simulate"
    made = next(i for i in facts["instances"] if i["id"] == "simulate")
    assert made["num_directories"] == 1 + sum(path.is_dir() for path in simulate.rglob("*"))
    files = [path for path in simulate.rglob("*") if path.is_file() and path.name != "out.json"]
    assert made["num_files"] == len(files)
    assert merlin("plan", spec, "--mermaid", cwd=tmp_path).stdout.startswith("flowchart TD\n")
    assert "simulate" in merlin("plan", spec, cwd=tmp_path).stdout


def test_ctrl_c_exits_with_130_and_says_how_to_go_on(tmp_path: Path) -> None:
    spec = tmp_path / "slow.yaml"
    spec.write_text(SLOW)
    process = subprocess.Popen(
        [sys.executable, "-m", "merlin.cli", "run", str(spec)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until(lambda: bool(list(tmp_path.glob("*/wait/started"))), process)
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=120)
    workspace = workspace_in(tmp_path)
    assert process.returncode == 130, err
    assert f"resume with: merlin restart {workspace}" in err
    assert json.loads(merlin("status", workspace, "--json", cwd=tmp_path).stdout)["state"] == "stopped"
    (tmp_path / "go").touch()
    done = merlin("restart", workspace, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["ok"] == 2


def test_cancel_ends_a_run_of_this_machine_and_says_so_if_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    run = WarmCommand("merlin", ["run", "slow.yaml"], cwd=tmp_path)
    wait_until(lambda: bool(list(tmp_path.glob("*/wait/started"))), run)
    workspace = workspace_in(tmp_path)
    waits = merlin("rerun", workspace, "--failed", "--yes", cwd=tmp_path)
    assert f"{workspace} runs, and goes on" in waits.stdout, waits.stderr
    refused = merlin("cancel", workspace, "--step", "wait", cwd=tmp_path)
    assert (refused.returncode, "press Ctrl-C there" in refused.stderr) == (1, True)
    done = merlin("cancel", workspace, cwd=tmp_path)
    assert (done.returncode, f"go on with: merlin restart {workspace}" in done.stdout) == (0, True), (
        done.stderr
    )
    run.communicate(timeout=120)
    assert run.returncode == 130
    idle = merlin("cancel", workspace, cwd=tmp_path)
    assert (idle.returncode, "does not run" in idle.stdout) == (0, True), idle.stderr


def test_a_step_may_run_a_study_itself(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(SQUARES)
    (tmp_path / "outer.yaml").write_text(
        f"""
description: {{name: outer, description: none}}
study:
  - name: nest
    run:
      cmd: {sys.executable} -m merlin.cli run $(SPECROOT)/inner.yaml --local --vars OUTPUT_PATH=$(WORKSPACE)
"""
    )
    done = merlin("run", "outer.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert workspace_in(workspace_in(tmp_path) / "nest").name.startswith("squares_")


def test_a_directory_that_is_no_workspace_is_an_error_with_a_reason(tmp_path: Path) -> None:
    for command in ("restart", "status", "failures", "detailed-status"):
        done = merlin(command, tmp_path, cwd=tmp_path)
        assert done.returncode == 1
        assert "not a workspace" in done.stderr
        assert "Traceback" not in done.stderr
    assert merlin("shards", "describe", tmp_path, cwd=tmp_path).returncode == 2


def test_samples_are_written_from_options_and_from_a_spec(spec: Path, tmp_path: Path) -> None:
    import numpy as np

    bounds = ["--bounds", "A:0:1", "B:-5:5"]
    done = merlin("samples", "--method", "sobol", "--num", "16", *bounds, "--out", "a/s.npy", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    values = np.load(tmp_path / "a/s.npy")
    assert values.shape == (16, 2)
    assert (values.min(axis=0) >= [0, -5]).all() and (values.max(axis=0) <= [1, 5]).all()
    assert merlin("samples", spec, "--vars", "N=7", "--out", "s.csv", cwd=tmp_path).returncode == 0
    assert np.loadtxt(tmp_path / "s.csv", delimiter=",").shape == (7,)
    grid = ["--method", "grid", "--num", "3,4", *bounds, "--json", "--out", "g.npy"]
    assert json.loads(merlin("samples", *grid, cwd=tmp_path).stdout)["num"] == 12
    for wrong in (["--num", "0"], ["--num", "2,3"], ["--bounds", "A:0"], []):
        assert merlin("samples", "--out", "x.npy", *wrong, cwd=tmp_path).returncode == 2


def test_the_schema_accepts_the_specs_that_are_shipped(tmp_path: Path) -> None:
    import jsonschema
    import yaml

    schema = json.loads(merlin("schema", cwd=tmp_path).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    paths = sorted((Path(__file__).resolve().parents[2] / "specs").glob("*/*.yaml"))
    assert paths
    for path in paths:
        validator.validate(yaml.safe_load(path.read_text()))


def test_a_run_whose_workspace_was_moved_says_so_and_fails(tmp_path: Path) -> None:
    command = "echo >> $(SPECROOT)/begun; until test -e $(SPECROOT)/go; do sleep 0.05; done"
    (tmp_path / "long.yaml").write_text(
        f"description: {{name: long, description: d}}\nstudy: [{{name: a, run: {{cmd: '{command}'}}}}]\n"
    )
    written = tmp_path / "out", tmp_path / "err"
    with written[0].open("wb") as out, written[1].open("wb") as err:
        argv = ["run", "long.yaml", "--local", "--json"]
        run = WarmProcess(
            "merlin", argv, cwd=tmp_path, env=os.environ, output=out.fileno(), errors=err.fileno()
        )
    wait_until((tmp_path / "begun").exists, written[1].read_text)
    workspace_in(tmp_path).rename(tmp_path / "moved")
    (tmp_path / "go").touch()
    code, err_text = run.wait(120), written[1].read_text()
    assert (code, "was removed or moved while its study ran" in err_text) == (1, True), err_text
    assert json.loads(written[0].read_text())["exit_code"] == 1
    assert (
        "planned 1 = ok 0 + failed 0 + skipped 0 + missing 1"
        in merlin("status", "moved", cwd=tmp_path).stdout
    )
    assert merlin("restart", "moved", "--local", cwd=tmp_path).returncode == 0
