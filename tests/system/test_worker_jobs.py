"""merlin workers: what is written and submitted, listed, ended, and explained, where nothing runs."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
from in_process import merlin
from paper_slurm import PaperSlurm
from schedulers.stand_in import StandIn
from servers import RedisServer

from merlin.base.locks import locked

SPEC = """\
description: {name: demo study, description: d}
batch: {type: slurm, nodes: 2, walltime: "1:00:00", bank: physics, queue: debug}
env: {variables: {WHO: nobody}}
study:
  - {name: sim, run: {cmd: "echo $(WHO)", task_queue: hot}}
  - {name: post, run: {cmd: "true", depends: [sim]}}
"""
URL = "redis://127.0.0.1:1/0"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PaperSlurm:
    made = PaperSlurm(tmp_path / "slurm")
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", made.path)
    monkeypatch.setenv("MERLIN_BROKER_URL", URL)
    monkeypatch.delenv("MERLIN_BACKEND_URL", raising=False)
    (folder / "demo.yaml").write_text(SPEC)
    return made


@pytest.fixture
def answering(slurm: PaperSlurm, any_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> PaperSlurm:
    """With a broker that answers; nobody works for it."""
    monkeypatch.setenv("MERLIN_BROKER_URL", any_redis.url)
    return slurm


def script_of(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert merlin("workers", "submit", "demo.yaml", "--dry", *more) == 0
    return capsys.readouterr().out


def test_a_dry_run_prints_the_script_and_asks_nobody(slurm, capsys):
    text = script_of(capsys, "--nodes", "3", "--queue", "long", "--steps", "sim", "--vars", "WHO=me")
    header = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --nodes=3", "#SBATCH --time=01:00:00", "#SBATCH --account=physics"} <= set(header)
    assert {"#SBATCH --partition=long", "#SBATCH --exclusive"} <= set(header)
    *_, told, last = text.splitlines()
    here = Path.cwd()
    asked = f"run-workers {here}/demo.yaml --foreground --scheduler slurm --nodes 3 --steps sim --vars WHO=me"
    assert told == f"# what merlin {asked} starts here:"
    program, _, launched = last.partition(" -- ")
    assert program == f"exec {sys.executable} -P -m merlin.cli.job_workers 127.0.0.1:1"
    assert launched.startswith("srun -N 3 -n 3 --overlap --cpu-bind=none ")
    (worker,) = json.loads(shlex.split(launched)[-1])["workers"].values()
    assert [word.rpartition("]_")[2].partition("@")[0] for word in worker if "hot" in word] == ["hot"]
    assert f"cd {here} || exit 1" in text
    assert f"export MERLIN_BROKER_URL={URL}" in text
    assert slurm.calls == []


@pytest.mark.parametrize(
    ("in_spec", "words"),
    [
        ("{w: {steps: [all], machines: [node1]}}", ()),
        ("{w: {steps: [all], batch: {type: flux}}}", ()),
        ("{a: {steps: [sim], nodes: 1}, b: {steps: [post]}}", ()),
        ("{w: {steps: [all], args: -n $SLURM_JOB_ID}}", ()),
        ("{}", ("--worker-args", "-n w.$SLURM_JOB_ID")),
    ],
)
def test_what_only_the_job_knows_is_left_to_it(slurm, capsys, in_spec, words):
    Path("demo.yaml").write_text(f"{SPEC}merlin: {{resources: {{workers: {in_spec}}}}}\n")
    *_, last = script_of(capsys, *words).splitlines()
    start = (
        f"exec {sys.executable} -P -m merlin.cli -lvl INFO run-workers {Path.cwd()}/demo.yaml --foreground "
    )
    assert last.startswith(f"{start}--scheduler slurm --nodes 2")


def test_a_dry_run_needs_no_broker(slurm, capsys, monkeypatch):
    monkeypatch.delenv("MERLIN_BROKER_URL")
    assert merlin("workers", "submit", "demo.yaml", "--dry") == 0
    told = capsys.readouterr()
    assert "#SBATCH --nodes=2" in told.out
    assert "no broker is configured" in told.err


def test_nothing_secret_stands_in_a_script(slurm, capsys, monkeypatch):
    monkeypatch.setenv("MERLIN_BROKER_URL", "redis://:geheim@127.0.0.1:1/0")
    monkeypatch.setenv("MERLIN_SECRET_THING", "geheim")
    text = script_of(capsys)
    assert "geheim" not in text
    assert "export MERLIN_KEY_FILE=" in text


@pytest.mark.parametrize(
    "words",
    [("--worker-args", "-Q 'a\n#SBATCH --wrap=evil'"), ("--queue", "a\n#SBATCH --uid=0"), ("--bank", "x\ny")],
)
def test_a_line_break_in_a_word_is_refused_and_becomes_no_line(slurm, capsys, words):
    assert merlin("workers", "submit", "demo.yaml", "--dry", *words) == 2
    assert "no job script can be written" in capsys.readouterr().err


def test_a_name_of_a_queue_never_becomes_a_line(slurm, capsys):
    Path("demo.yaml").write_text(SPEC.replace("task_queue: hot", 'task_queue: "a\\n#SBATCH --wrap=evil"'))
    assert not [line for line in script_of(capsys).splitlines() if line.startswith("#") and "evil" in line]


def test_without_a_scheduler_it_says_how_to_choose_one(slurm, capsys):
    Path("demo.yaml").write_text(SPEC.replace("type: slurm", "type: local"))
    assert merlin("workers", "submit", "demo.yaml", "--dry") == 2
    assert "--scheduler slurm" in capsys.readouterr().err
    assert "--scheduler slurm" in script_of(capsys, "--scheduler", "slurm")


def test_a_walltime_that_is_none_is_refused(slurm, capsys):
    assert merlin("workers", "submit", "demo.yaml", "--dry", "--walltime", "soon") == 2
    assert "'soon'" in capsys.readouterr().err


def test_without_servers_nothing_is_submitted(slurm, capsys):
    assert merlin("workers", "submit", "demo.yaml") == 1
    assert slurm.calls == []


def test_jobs_are_submitted_listed_and_cancelled(answering, capsys):
    assert merlin("workers", "submit", "demo.yaml", "--jobs", "2", "--json") == 0
    jobs = json.loads(capsys.readouterr().out)["jobs"]
    assert [job["id"] for job in jobs] == ["1", "2"]
    assert all(Path(job["script"]).parent == Path.cwd() / "merlin_jobs" for job in jobs)
    assert all(Path(job["script"]).stat().st_mode & 0o777 == 0o700 for job in jobs)
    asked = len(answering.calls)
    assert merlin("workers", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)["jobs"]
    assert [(line["id"], line["state"], line["reason"], line["num_nodes"]) for line in listed] == [
        ("1", "pending", "Priority", 2), ("2", "pending", "Priority", 2),
    ]  # fmt: skip
    assert answering.calls[asked:] == ["squeue"]
    assert merlin("workers", "stop", "1", "11") == 1
    told = capsys.readouterr()
    assert "job 1: cancelled before it began" in told.out
    assert "11 is no worker job of yours" in told.err
    assert answering.states == {"1": "CANCELLED", "2": "PENDING"}
    assert merlin("workers", "stop", "--all") == 0
    assert answering.states["2"] == "CANCELLED"


def test_jobs_of_other_kinds_are_left_alone(answering, capsys):
    (answering.folder / "jobs").write_text("7|RUNNING|1|0|2026-11-23T13:01:00|N/A|N/A|||mine|\n")
    assert merlin("workers", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == []
    assert merlin("workers", "stop", "7") == 1
    assert answering.states == {"7": "RUNNING"}


def test_a_scheduler_that_does_not_answer_is_never_no_jobs(answering, capsys):
    answering.fail("down")
    for words in (("list",), ("stop", "--all"), ("submit", "demo.yaml")):
        assert merlin("workers", *words) == 1
        assert "Unable to contact slurm controller" in capsys.readouterr().err


def test_a_refusal_is_told_in_the_schedulers_words_and_explained_later(answering, capsys):
    answering.fail("refuse")
    assert merlin("workers", "submit", "demo.yaml") == 1
    assert "Invalid account" in capsys.readouterr().err


def test_explain_needs_no_broker_to_say_that_it_is_missing(slurm, capsys, monkeypatch):
    assert merlin("workers", "explain", "demo.yaml", "--json") == 1
    assert "127.0.0.1:1" in json.loads(capsys.readouterr().out)["obstacles"][0]["what"]
    monkeypatch.delenv("MERLIN_BROKER_URL")
    assert merlin("workers", "explain", "demo.yaml") == 1
    told = capsys.readouterr().out
    assert "no broker is configured" in told
    assert "merlin server start" in told


def test_explain_names_waiting_jobs_with_the_schedulers_reason(answering, capsys):
    assert merlin("workers", "submit", "demo.yaml", "--jobs", "2") == 0
    capsys.readouterr()
    assert merlin("workers", "explain", "demo.yaml") == 1
    assert "2 worker jobs (1, 2) wait: Priority" in capsys.readouterr().out


def test_explain_asks_the_scheduler_that_the_jobs_were_submitted_to(answering, capsys):
    Path("demo.yaml").write_text(SPEC.replace("type: slurm", "type: local"))
    assert merlin("workers", "submit", "demo.yaml", "--scheduler", "slurm") == 0
    capsys.readouterr()
    assert merlin("workers", "explain", "demo.yaml") == 1
    assert "1 worker job (1) wait: Priority" in capsys.readouterr().out


def test_explain_of_a_spec_knows_the_jobs_of_its_open_study_and_not_those_of_other_specs(answering, capsys):
    Path("other.yaml").write_text(SPEC.replace("demo study", "demo study two"))
    assert merlin("workers", "submit", "other.yaml") == 0
    assert merlin("workers", "stop", "--all") == 0
    capsys.readouterr()
    assert merlin("run", "demo.yaml", "--json") == 0
    workspace = json.loads(capsys.readouterr().out)["workspace"]
    answering.fail("refuse")
    assert merlin("workers", "submit", workspace) == 1
    capsys.readouterr()
    assert merlin("workers", "explain", "demo.yaml") == 1
    told = capsys.readouterr().out
    assert "the last worker job was refused" in told and "Invalid account" in told
    assert "has ended" not in told


def test_logs_are_listed_shown_and_guessed(slurm, capsys):
    logs = Path("merlin_logs")
    logs.mkdir()
    (logs / "simw.12.node1.log").write_text("hello\n")
    assert merlin("workers", "logs") == 0
    assert "simw.12.node1" in capsys.readouterr().out
    assert merlin("workers", "logs", "--worker", "celery@simw.12.node1") == 0
    assert capsys.readouterr().out == "hello\n"
    assert merlin("workers", "logs", "--worker", "simw.12.node2") == 2
    assert "did you mean simw.12.node1?" in capsys.readouterr().err
    assert merlin("workers", "logs", "--job", "12") == 2


def test_the_output_of_a_job_is_found_by_its_id(answering, capsys):
    assert merlin("workers", "submit", "demo.yaml", "--json") == 0
    (job,) = json.loads(capsys.readouterr().out)["jobs"]
    assert merlin("workers", "logs", "--job", "1") == 0
    assert "is not there yet" in capsys.readouterr().err
    Path(job["output"]).write_text("from the job\n")
    assert merlin("workers", "logs", "demo.yaml", "--job", "1") == 0
    assert capsys.readouterr().out == "from the job\n"


def test_a_scheduler_that_does_not_answer_hides_no_jobs_of_another(tmp_path, monkeypatch, capsys):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in ("sbatch", "squeue"):
        (broken / name).write_text("#!/bin/sh\necho 'squeue: fatal: no controller' >&2\nexit 1\n")
        (broken / name).chmod(0o755)
    flux = StandIn(tmp_path / "flux", "flux")
    monkeypatch.setenv("PATH", f"{broken}:{flux.path}")
    monkeypatch.delenv("MERLIN_BROKER_URL", raising=False)
    assert merlin("workers", "list", "--json") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["jobs"] == [] and "no controller" in said.err
    flux.fault("flux-jobs", prints="flux-jobs: ERROR: no broker")
    assert merlin("workers", "list", "--json") == 1


def test_explain_says_why_an_autoscale_that_is_alive_submits_nothing(answering, capsys):
    jobs = Path("merlin_jobs")
    jobs.mkdir()
    (jobs / "autoscale.jsonl").write_text('{"time": 1.0, "move": "wait", "reason": "no more than 2 nodes"}\n')
    with locked(jobs / "autoscale.lock"):
        assert merlin("workers", "explain", "demo.yaml") == 1
        assert "autoscale submits no job: no more than 2 nodes" in capsys.readouterr().out
    assert merlin("workers", "explain", "demo.yaml") == 1
    assert "autoscale" not in capsys.readouterr().out


def test_a_second_autoscale_of_the_same_jobs_is_refused(answering, capsys):
    jobs = Path("merlin_jobs")
    jobs.mkdir()
    with locked(jobs / "autoscale.lock"):
        assert merlin("workers", "autoscale", "demo.yaml") == 1
    assert "another merlin workers autoscale" in capsys.readouterr().err


def test_an_autoscale_without_an_open_study_ends_at_once_and_submits_nothing(answering, capsys):
    assert merlin("workers", "autoscale", "demo.yaml", "--json") == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["move"] == "finish"
    assert "no open study of yours uses these queues" in told.err
    assert "sbatch" not in answering.calls


@pytest.mark.parametrize("words", [("--min", "3", "--max", "2"), ("--backlog", "soon")])
def test_limits_that_make_no_sense_are_refused(answering, capsys, words):
    assert merlin("workers", "autoscale", "demo.yaml", *words) == 2


@pytest.mark.parametrize(
    ("batch", "words", "reason"),
    [
        ("type: slurm", ("--local",), "needs a broker"),
        ("type: slurm", ("--dry",), "needs a broker"),
        ("type: local", (), "where there are no jobs"),
        ("type: slurm, autoscale: {min: 3, max: 2}", (), "exclude each other"),
    ],
)
def test_a_study_for_which_no_jobs_can_come_is_not_published(answering, capsys, batch, words, reason):
    Path("demo.yaml").write_text(SPEC.replace('type: slurm, nodes: 2, walltime: "1:00:00"', batch))
    assert merlin("run", "demo.yaml", "--autoscale", *words) == 2
    assert reason in capsys.readouterr().err
    assert not list(Path.cwd().glob("demo*_2*"))
    assert answering.calls == []
