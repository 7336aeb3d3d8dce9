"""What `merlin plan`, `validate` and `run` say about samples before anything runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from merlin.base.commands import CommandResult
from merlin.cli import main as command_line

SPEC = """
description: {name: s, description: d}
study:
- name: simulate
  run: {cmd: "echo $(X)"}
- name: report
  run: {cmd: echo, depends: [simulate_*]}
- name: collect
  run: {depends: [simulate_*], aggregate: {from: simulate, fields: {y: {file: simulate.out, regex: (.+)}}}}
merlin:
  samples:
    generate: {cmd: "seq 5 > $(MERLIN_INFO)/s.csv"}
    file: $(MERLIN_INFO)/s.csv
    column_labels: [X]
"""
UNKNOWN = "unknown until generate.cmd has run"


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)

    def say(*argv: str, spec: str = SPEC) -> str:
        Path("s.yaml").write_text(spec)
        with pytest.raises(SystemExit) as caught:
            command_line.main([argv[0], "s.yaml", *argv[1:]])
        assert caught.value.code == 0
        told = capsys.readouterr()
        return told.out + told.err

    return say


def test_what_only_the_command_of_generate_knows_is_unknown(say) -> None:
    drawing = say("plan")
    assert f"tasks {UNKNOWN}" in drawing and f"shards {UNKNOWN}" in drawing
    assert f"samples of X: {UNKNOWN}" in drawing
    assert f"4 step instances\ntasks, directories, files, shards: {UNKNOWN}" in drawing
    assert f"simulate<br/>tasks {UNKNOWN}" in say("plan", "--mermaid")
    assert f"tasks {UNKNOWN}" in say("validate")
    assert json.loads(say("validate", "--json"))["summary"]["tasks"] is None


def test_unknown_numbers_are_null(say) -> None:
    told = json.loads(say("plan", "--json"))
    facts = told["forecast"]
    assert [facts[f"num_{what}"] for what in ("samples", "tasks", "directories", "files", "shards")] == [
        None
    ] * 5
    assert [i["num_tasks"] for i in facts["instances"]] == [None, 1, None, 1]
    assert [node["tasks"] for node in told["graph"]] == [None, 1, None]


def test_a_plan_says_what_it_costs(say, tmp_path: Path) -> None:
    spec = SPEC.replace('cmd: "seq 5 > $(MERLIN_INFO)/s.csv"', "method: sobol, num: 8, bounds: {X: [0, 1]}")
    submitted = 'cmd: "echo $(X)", nodes: 2, walltime: "30:00", batch: {submit: true, tasks_per_job: 4}'
    spec = spec.replace('cmd: "echo $(X)"', submitted)
    drawing = say("plan", spec="batch: {type: slurm}\n" + spec)
    assert "data sets: 288 B before compression\n2 batch jobs, which ask for 2 node-hours" in drawing
    assert "core-hours: unknown before a study of this spec has run here" in drawing


def test_core_hours_are_those_of_the_last_study(say, tmp_path: Path) -> None:
    spec = SPEC.replace(
        'cmd: "seq 5 > $(MERLIN_INFO)/s.csv"', "method: sobol, num: $(N), bounds: {X: [0, 1]}"
    )
    spec = spec.replace("    file: $(MERLIN_INFO)/s.csv\n", "") + "env: {variables: {N: 4}}\n"
    say("run", "--local", spec=spec)
    (first,) = tmp_path.glob("s_2*")
    say("run", "--dry", spec=spec)
    told = json.loads(say("plan", "--vars", "N=40000", "--json", spec=spec))["time"]
    small = json.loads(say("plan", "--json", spec=spec))["time"]
    assert told["workspace"] == str(first) and list(told["steps"]) == ["simulate", "report", "collect"]
    assert told["steps"]["simulate"] == pytest.approx(10_000 * small["steps"]["simulate"])
    assert told["steps"]["report"] == small["steps"]["report"] > 0
    assert told["core_hours"] == pytest.approx(sum(told["steps"].values()))
    other = spec.replace("name: report", "name: other")
    drawing = say("plan", spec=other)
    assert f"as in {first}: simulate" in drawing and drawing.endswith("; not known of other\n")


def test_a_run_warns_that_a_file_is_used_in_place_of_generate(say, tmp_path: Path) -> None:
    spec = SPEC.replace('cmd: "seq 5 > $(MERLIN_INFO)/s.csv"', "method: sobol, num: 8, bounds: {X: [0, 1]}")
    (tmp_path / "s.csv").write_text("1\n2\n")
    told = say("run", "--local", "--dry", spec=spec.replace("$(MERLIN_INFO)/", ""))
    assert "warning: the samples file exists and is used" in told


def test_only_what_would_have_run_something_says_that_nothing_was_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(SPEC.replace("echo $(X)", "echo $(Y)"))
    for command, says_so in (("plan", False), ("run", True)):
        with pytest.raises(SystemExit):
            command_line.main([command, "s.yaml"])
        assert ("nothing was run" in capsys.readouterr().err) is says_so


def test_workers_that_could_not_start_are_warned_of(say) -> None:
    workers = """
  resources:
    workers:
      one: {args: "--concurency 3 --pidfile=$HOME/x"}
      two: {args: "-c '2"}
      three: {args: "-l info --concurrency 2 --without-gossip -O fair"}
"""
    told = say("validate", spec=SPEC + workers.lstrip("\n"))
    assert "valid: 0 errors, 2 warnings" in told
    assert "17:" in told and "no option --concurency\n    did you mean '--concurrency'?" in told
    assert "worker 'two' cannot start" in told


@pytest.mark.parametrize(
    ("shell", "script", "told"),
    [
        ("/bin/bash", "if [ 1 = 1 ]; then\n  echo", "cannot read its cmd: line 3: syntax error"),
        ("bash", "echo 'a", "unexpected EOF"),
        ("sh", "echo a)", "yntax error"),
        ("bash", "$(BEGIN)\n  for i in $(case) $(date); do rm -f !(a|b) $(X); done\nfi", ""),
        ("bash", "if !(test -f x) then echo; fi", ""),
        ("python3", "while True: pass", ""),
    ],
)
def test_a_script_that_its_shell_cannot_read_is_warned_of(say, shell: str, script: str, told: str) -> None:
    run = json.dumps({"shell": shell, "cmd": script})
    more = "global.parameters: {case: {values: [1], label: C.%%}}\nenv: {variables: {BEGIN: if true; then}}\n"
    said = say("validate", spec=SPEC.replace('{cmd: "echo $(X)"}', run) + more)
    assert f"{bool(told):d} warning" in said and told in said


def test_no_shell_of_a_spec_is_run_to_read_a_script(say, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sh").write_text("#!/bin/sh\ntouch was_run\n")
    (tmp_path / "sh").chmod(0o755)
    run = json.dumps({"shell": "./sh", "cmd": "echo 'a"})
    assert "cannot read its cmd" in say("validate", spec=SPEC.replace('{cmd: "echo $(X)"}', run))
    assert not (tmp_path / "was_run").exists()


def test_no_script_is_read_after_one_that_took_too_long(say, monkeypatch) -> None:
    asked = []
    late = lambda command, **_: asked.append(command) or CommandResult(None, "", "")  # noqa: E731
    monkeypatch.setattr("merlin.execution.shell_syntax.run_command", late)
    say("validate", spec=SPEC.replace('{cmd: "echo $(X)"}', '{cmd: "echo $(X)", restart: "echo $(X)"}'))
    assert len(asked) == 1
