"""Commands that explain a study: what failed and why, what it printed, who ran it, what it cost, and what mends it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from commands import WarmProcess, run_merlin
from live_processes import processes_inside
from servers import RedisServer
from waiting import wait_until

SPEC = """
description: {name: fragile, description: large X diverge, and sample 7 has no license}
study:
  - name: sim
    run:
      cmd: |
        echo "sample $(MERLIN_SAMPLE_ID)"
        test $(MERLIN_SAMPLE_ID) != 7 || test -e $(SPECROOT)/mended || { echo "no license /opt/$(X)" >&2; exit 3; }
        awk 'BEGIN { exit !($(X) < 48) }' || { echo "diverged at $(X)" >&2; exit 5; }
        echo '{"y": $(X)}' > out.json
  - name: post
    run: {depends: [sim], cmd: "date +%s.%N > $(MERLIN_SAMPLE_ID).when"}
  - name: collect
    run:
      depends: [sim_*]
      aggregate: {from: sim, samples_per_shard: 20, valid: y != 20, fields: {y: {file: out.json, key: y}}}
  - {name: end, run: {depends: [post_*], cmd: date +%s.%N > when}}
  - {name: learn, run: {function: "fragile_learning:learn"}}
merlin:
  samples: {column_labels: [X], file: samples.csv}
"""
FUNCTION = """
def learn(inputs, context):
    print("learning from", len(inputs["X"]))
    if (inputs["X"] == 5).any():
        raise ValueError("cannot learn from 5")
    return {"z": inputs["X"]}
"""
NUM = 60


def make_spec(folder: Path) -> None:
    (folder / "fragile.yaml").write_text(SPEC)
    (folder / "fragile_learning.py").write_text(FUNCTION)
    (folder / "samples.csv").write_text("".join(f"{k}\n" for k in range(NUM)))


def environment(folder: Path, **more: str) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}
    return {**inherited, "HOME": str(folder), **more}


def run_study(folder: Path) -> Path:
    make_spec(folder)
    done = run_merlin("run", "fragile.yaml", "--json", cwd=folder, env=environment(folder))
    assert done.returncode == 1, done.stderr
    return Path(json.loads(done.stdout)["workspace"])


def merlin(workspace: Path, *words: str | Path, code: int = 0) -> str:
    name, *rest = words
    folder = workspace.parent
    done = run_merlin(name, workspace, *rest, cwd=folder, env=environment(folder))
    assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def ask(workspace: Path, *words: str | Path, code: int = 0) -> Any:
    return json.loads(merlin(workspace, *words, "--json", code=code))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that has ended, with failures; for tests that only look."""
    return run_study(tmp_path_factory.mktemp("fragile"))


# ------------------------------------------------------------------ of a study that has ended


def test_failures_are_grouped_with_the_inputs_that_go_with_them(study: Path) -> None:
    groups = {group["signature"]: group for group in ask(study, "failures")}
    assert {text: group["count"] for text, group in groups.items()} == {
        "diverged at <n>": 12, "no license <path>": 1, "ValueError: cannot learn from <n>": 1,
    }  # fmt: skip
    diverged = groups["diverged at <n>"]
    (found,) = diverged["ranges"]
    assert (found["input"], found["high"]) == ("X", 59.0)
    assert found["low"] >= 44
    assert found["p"] < 0.01
    assert groups["no license <path>"]["ranges"] == []
    text = merlin(study, "failures", "--step", "sim")
    assert f"merlin failures {study} --group {diverged['id']} --rerun" in text
    assert "of the tasks fail so, elsewhere" in text
    assert "learn" not in text


def test_a_sample_tells_its_story_across_the_steps(study: Path) -> None:
    text = merlin(study, "explain", "7", code=1)
    assert "sim: failed: exit code 3" in text
    assert "post: skipped: its task of sim failed: exit code 3" in text
    assert f"merlin rerun {study} --samples 7 --step sim" in text
    assert "collect of sim: ok: sample 7 is left out: failed, exit code 3" in text
    assert "collect of sim: ok: sample 20 is left out: filtered, y != 20" in merlin(study, "explain", "20")
    story = ask(study, "explain", "0")
    ended = {task["step"]: task["outcome"] for task in story["tasks"]}
    assert ended == dict.fromkeys(("sim", "post", "learn", "collect"), "ok")
    assert story["exit_code"] == 0


def test_a_study_a_step_and_a_worker_are_explained_and_other_words_are_errors(study: Path) -> None:
    whole = ask(study, "explain", code=1)
    assert whole["failed"] == 14
    assert f"merlin failures {study}" in whole["obstacles"][0]["remedy"]
    step = ask(study, "explain", "post", code=1)
    assert (step["ok"], step["skipped"], step["after"]) == (47, 13, ["the same sample in sim: ended"])
    assert step["causes"] == []
    groups = ask(study, "failures", "--step", "sim")
    causes = ask(study, "explain", "sim", code=1)["causes"]
    assert [(each["group"], each["count"]) for each in causes] == [(g["id"], g["count"]) for g in groups]
    text = merlin(study, "explain", "sim", code=1)
    assert f"failed   {groups[0]['count']} tasks, {groups[0]['exit_class']}: {groups[0]['signature']}" in text
    worker = ask(study, "explain", "w0", code=1)
    assert worker["done"]["chunks"] > 0
    done = run_merlin("explain", study, "pots", cwd=study.parent, env=environment(study.parent))
    assert done.returncode == 2
    assert "did you mean post?" in done.stderr


def test_logs_of_a_sample_and_of_all_failures(study: Path) -> None:
    text = merlin(study, "logs", "7")
    assert "=== sim, sample 7: failed" in text
    assert "sample 7\n" in text
    assert "no license /opt/7" in text
    assert "learning from" in text, "what a function printed is in its worker's log"
    every = merlin(study, "logs", "--failed", "--step", "sim", "learn")
    assert every.count("===\n") == 14
    assert "ValueError: cannot learn from 5" in every
    (end,) = ask(study, "logs", "--step", "end")
    assert (end["outcome"], [Path(f["path"]).name for f in end["files"]]) == ("ok", ["end.out", "end.err"])


def test_the_cost_adds_up_and_has_a_price(study: Path) -> None:
    cost = ask(study, "cost", "--rate", "2")
    parts = ("ok_h", "failed_h", "retried_h", "interrupted_h", "rerun_h")
    for step in (*cost["steps"], cost["total"]):
        assert step["used_h"] == pytest.approx(sum(step[part] for part in parts))
    assert cost["total"]["failed_h"] > 0
    assert cost["held_h"] == pytest.approx(cost["total"]["used_h"] + cost["overhead_h"] + cost["idle_h"])
    assert cost["price"] == pytest.approx(2 * cost["held_h"])
    assert "price" in merlin(study, "cost", "--rate", "2")


def test_a_timeline_and_spans_are_written(study: Path, tmp_path: Path) -> None:
    report = ask(study, "timeline", "-o", tmp_path / "t.json", "--otlp-json", tmp_path / "spans.json")
    trace = json.loads((tmp_path / "t.json").read_text())
    slices = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert len(slices) == report["trace"]["slices"] > 0
    assert sum(event["args"]["failed"] for event in slices) == 14
    spans = [json.loads(line) for line in (tmp_path / "spans.json").read_text().splitlines()]
    assert sum(len(s["scopeSpans"][0]["spans"]) for r in spans for s in r["resourceSpans"]) == report["spans"]
    run = run_merlin("timeline", study, "-o", "trace.txt", cwd=tmp_path, env=environment(tmp_path))
    assert run.returncode == 2


# ------------------------------------------------------------------ running again


def test_chosen_tasks_run_again_and_nothing_else_but_what_depends_on_them(tmp_path: Path) -> None:
    study = run_study(tmp_path)
    (tmp_path / "mended").touch()
    group = next(g["id"] for g in ask(study, "failures") if g["signature"].startswith("no license"))
    before = {path: path.read_text() for path in study.rglob("*.when")} | {
        study / "end/when": (study / "end/when").read_text()
    }
    refused = run_merlin("failures", study, "--rerun", cwd=tmp_path, env=environment(tmp_path))
    assert refused.returncode == 2
    assert "add --yes" in refused.stderr
    (would,) = ask(study, "failures", "--group", group, "--rerun", "--dry")["rerun"]
    assert would["steps"][0] == {"step": "sim", "chosen": 1, "others": 0}
    merlin(study, "failures", "--group", group, "--rerun", "--yes", code=1)
    counts = {s["step"]: (s["ok"], s["failed"], s["skipped"]) for s in ask(study, "status")["steps"]}
    assert (counts["sim"], counts["post"]) == ((48, 12, 0), (48, 0, 12))
    changed = [path for path, text in before.items() if path.read_text() != text]
    assert changed == [study / "end/when"], "it had seen the tasks without this one"
    choose_by_a_condition(study)
    done = run_merlin("shards", "verify", study, cwd=tmp_path, env=environment(tmp_path))
    assert done.returncode == 0, done.stdout


def choose_by_a_condition(study: Path) -> None:
    """Tasks that were ok run again, with all that depends on them."""
    found = {path.stem: path for path in study.rglob("*.when")}
    before = {name: path.read_text() for name, path in found.items()}
    report = ask(study, "rerun", "--where", "step = 'sim' and X between 2 and 3", "--yes", code=1)
    assert report["rerun"]["steps"] == [
        {"step": "sim", "chosen": 2, "others": 0},
        {"step": "post", "chosen": 0, "others": 2},
        {"step": "collect", "chosen": 0, "others": 2},
        {"step": "end", "chosen": 0, "others": 1},
    ]
    assert {name for name, path in found.items() if path.read_text() != before[name]} == {"2", "3"}
    history = ask(study, "explain", "2")["tasks"][0]["history"]
    assert [each["outcome"] for each in history] == ["ok", "reset", "ok"]
    assert ask(study, "cost")["total"]["rerun_h"] > 0


# ------------------------------------------------------------------ while it runs

SLOW = """
description: {name: slow, description: one task waits}
study:
  - name: sim
    run:
      task_queue: hot
      cmd: |
        echo "begun $(X)"
        while test $(X) = 1 && ! test -e $(SPECROOT)/go; do sleep 0.1; done
        echo "done $(X)"
  - {name: end, run: {depends: [sim_*], task_queue: hot, cmd: "true"}}
merlin:
  resources: {workers: {simw: {steps: all, args: "--concurrency 2"}}}
  samples: {column_labels: [X], file: samples.csv}
"""


def make_slow(folder: Path) -> None:
    (folder / "slow.yaml").write_text(SLOW)
    (folder / "samples.csv").write_text("".join(f"{k}\n" for k in range(4)))


def start(folder: Path, env: dict[str, str], *words: str | Path) -> tuple[WarmProcess, IO[str]]:
    """A command, and what it prints."""
    reading, writing = os.pipe()
    with open(writing, "wb") as output, open(os.devnull, "wb") as nothing:
        process = WarmProcess(
            "merlin",
            list(map(str, words)),
            cwd=folder,
            env=env,
            output=output.fileno(),
            errors=nothing.fileno(),
        )
    return process, open(reading)


def test_logs_follow_a_task_to_its_end_and_explain_names_the_run(tmp_path: Path) -> None:
    make_slow(tmp_path)
    env = environment(tmp_path)
    run, report = start(tmp_path, env, "run", "slow.yaml", "--workers", "2", "--json")
    wait_until(lambda: list(tmp_path.glob("slow_2*/sim/*/sim.out")), lambda: run.poll())
    study = next(tmp_path.glob("slow_2*"))
    wait_until(
        lambda: "1 task" in json.dumps(ask(study, "explain")["obstacles"]), lambda: ask(study, "explain")
    )
    whole = ask(study, "explain")
    assert whole["is_running"]
    assert {each["kind"] for each in whole["obstacles"]} == {"dependency"}
    assert "it has begun" in merlin(study, "explain", "1")
    follower, lines = start(tmp_path, env, "logs", study, "1", "-f")
    with lines:
        assert any(line == "begun 1\n" for line in lines)
        (tmp_path / "go").touch()
        assert any(line == "done 1\n" for line in lines)
        assert any("sample 1: ok" in line for line in lines)
        assert follower.wait(timeout=60) == 0
    assert run.wait(timeout=60) == 0
    with report:
        assert json.load(report)["exit_code"] == 0
    assert ask(study, "explain")["obstacles"] == []


# ------------------------------------------------------------------ on workers


@pytest.fixture
def home(tmp_path: Path, own_redis: RedisServer) -> Iterator[tuple[Path, dict[str, str]]]:
    """A working directory and an environment with a broker; no process of its workers is left at the end."""
    make_slow(tmp_path)
    env = environment(tmp_path, MERLIN_BROKER_URL=own_redis.url, MERLIN_LEASE_S="4")
    yield tmp_path, env
    run_merlin("stop-workers", "--now", "--wait", "60", cwd=tmp_path, env=env)
    ours = [line for line in processes_inside(tmp_path) if "redis-server" not in line]
    wait_until(
        lambda: not [line for line in processes_inside(tmp_path) if "redis-server" not in line], lambda: ours
    )


def test_a_published_study_says_what_it_lacks_and_runs_chosen_tasks_again_on_workers(
    home: tuple[Path, dict[str, str]], own_redis: RedisServer
) -> None:
    folder, env = home

    def answer(*words: str | Path, code: int | None = None) -> Any:
        done = run_merlin(*words, "--json", cwd=folder, env=env)
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout)

    (folder / "go").touch()
    study = Path(answer("run", "slow.yaml", code=0)["workspace"])
    first = answer("explain", study, code=1)["obstacles"][0]
    assert (first["kind"], first["remedy"]) == ("workers", f"merlin run-workers {study}")
    own_redis.pause()
    try:
        hung = answer("explain", study, code=1)["obstacles"][0]
    finally:
        own_redis.resume()
    assert hung["kind"] == "server"
    assert "did not answer" in hung["what"]
    answer("run-workers", "slow.yaml", code=0)
    wait_until(lambda: answer("status", study)["totals"]["missing"] == 0, lambda: answer("status", study))
    worker = answer("explain", study, "simw", code=0)
    assert (worker["is_alive"], worker["queues"]) == (True, ["hot"])
    answer("rerun", study, "--where", "X = 2", "--yes", code=0)
    wait_until(lambda: answer("status", study)["totals"]["missing"] == 0, lambda: answer("status", study))
    history = answer("explain", study, "2", code=0)["tasks"][0]["history"]
    assert [each["outcome"] for each in history] == ["ok", "reset", "ok"]
