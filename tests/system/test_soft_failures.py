"""Tasks that choose to fail, and tasks that ask the workers to stop: the same on one machine and on workers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import run_merlin
from live_processes import processes_inside
from servers import RedisServer
from user_home import UserHome
from waiting import wait_until

SPEC = """
description: {name: soft, description: one sample fails softly and one by accident}
study:
  - name: sim
    run:
      cmd: |
        test -e $(SPECROOT)/mended || case $(X) in 1) exit $(MERLIN_SOFT_FAIL);; 2) exit 2;; esac
        echo '{"y": $(X)}' > out.json
  - name: post
    run: {depends: [sim], cmd: "echo ran >> ran.$(X); echo '{\\"z\\": $(X)}' > out.json"}
  - name: stop
    run: {depends: [sim_*], cmd: exit CODE}
  - {name: after, run: {depends: [stop], cmd: "true"}}
  - name: sims
    run: {depends: [sim], aggregate: {from: sim, fields: {y: {file: out.json, key: y}}}}
  - name: posts
    run: {depends: [post], aggregate: {from: post, fields: {z: {file: out.json, key: z}}}}
merlin:
  GOES_ON
  samples: {column_labels: [X], file: samples.csv}
"""
NUM = 6
KEYS = ("ok", "failed", "skipped", "missing", "on_failed_input")


class Home(UserHome):
    """A working directory with the spec, and a user's environment."""

    def __init__(self, folder: Path, redis: RedisServer | None) -> None:
        servers = {} if redis is None else {"MERLIN_BROKER_URL": redis.url, "MERLIN_LEASE_S": "4"}
        super().__init__(folder, **servers)
        (folder / "samples.csv").write_text("".join(f"{k}\n" for k in range(NUM)))
        # workers would stop a minute later, in the midst of a test on a slow machine
        self.code = "$(MERLIN_STOP_WORKERS)" if redis is None else "0"
        self.write("")

    def write(self, goes_on: str) -> None:
        (self.folder / "soft.yaml").write_text(SPEC.replace("CODE", self.code).replace("GOES_ON", goes_on))


def counts(report: dict[str, Any]) -> dict[str, int]:
    return {key: report[key] for key in KEYS}


def samples(workspace: str, data_set: str) -> list[int]:
    """The samples that are in a data set."""
    manifest = json.loads(Path(workspace, data_set, "manifest.json").read_text())
    (source,) = manifest["sources"]
    absent = {
        task for outcome in ("failed", "skipped") for lo, hi in source[outcome] for task in range(lo, hi)
    }
    return [task for task in range(NUM) if task not in absent]


def expect_a_soft_failure(home: Home, report: dict[str, Any]) -> str:
    """What became of SPEC: post ran on sample 1, and so did `stop`, which comes after all of sim."""
    workspace = str(report["workspace"])
    ok = 4 + 5 + 2 + 4  # sim, post, stop and after, shards and manifests
    assert counts(report) == {"ok": ok, "failed": 2, "skipped": 1, "missing": 0, "on_failed_input": 2}
    assert (samples(workspace, "sims"), samples(workspace, "posts")) == ([0, 3, 4, 5], [0, 1, 3, 4, 5])
    assert (
        "\n2 tasks ran on input that had failed: post 1, stop 1\n" in home.merlin("status", workspace).stdout
    )
    status = home.ask("status", workspace)
    assert status["totals"]["on_failed_input"] == 2
    assert {s["step"]: s["on_failed_input"] for s in status["steps"] if s["on_failed_input"]} == {
        "post": 1, "stop": 1,
    }  # fmt: skip
    causes = [group["cause"] for group in home.ask("failures", workspace)]
    assert sorted(causes) == ["exit code 2", "soft failure (exit code 101)"]
    return workspace


def expect_all_well(workspace: str, report: dict[str, Any]) -> None:
    assert (report["failed"], report["skipped"], report["missing"], report["on_failed_input"]) == (0, 0, 0, 0)
    assert samples(workspace, "posts") == list(range(NUM))
    times = {path.name: len(path.read_text().split()) for path in Path(workspace, "post").rglob("ran.*")}
    assert times == {"ran.0": 1, "ran.1": 2, "ran.2": 1, "ran.3": 1, "ran.4": 1, "ran.5": 1}


def test_on_one_machine(tmp_path: Path) -> None:
    home = Home(tmp_path, None)
    report = home.ask("run", "soft.yaml", code=1)
    assert report["stop_reason"] == ""
    workspace = expect_a_soft_failure(home, report)
    assert home.ask("restart", workspace, code=1)["note"] == "nothing is left to run"
    (tmp_path / "mended").touch()
    expect_all_well(workspace, home.ask("restart", workspace, "--failed"))
    (tmp_path / "mended").unlink()
    home.write("on_failure: continue")
    report = home.ask("run", "soft.yaml", code=1)
    assert counts(report) == {"ok": 16, "failed": 2, "skipped": 0, "missing": 0, "on_failed_input": 3}
    assert samples(report["workspace"], "sims") == [0, 3, 4, 5]


@pytest.fixture
def with_workers(tmp_path: Path, any_redis: RedisServer) -> Iterator[Home]:
    home = Home(tmp_path, any_redis)
    yield home
    run_merlin("stop-workers", "--now", "--wait", "100", cwd=tmp_path, env=home.env)
    alive = lambda: [line for line in processes_inside(tmp_path) if "redis-server" not in line]  # noqa: E731
    wait_until(lambda: not alive(), alive)


def test_on_workers(with_workers: Home) -> None:
    home = with_workers
    workspace = home.ask("run", "soft.yaml")["workspace"]
    home.merlin("run-workers", "soft.yaml")
    expect_a_soft_failure(home, home.ask("monitor", workspace, code=1))
    (home.folder / "mended").touch()
    home.merlin("restart", workspace, "--failed")
    home.merlin("run-workers", workspace)
    expect_all_well(workspace, home.ask("monitor", workspace))


def test_workers_stop_when_the_last_task_asks_them_to_and_the_study_is_finished(with_workers: Home) -> None:
    home = with_workers
    last = "description: {name: last, description: d}\nstudy: [{name: a, run: {cmd: exit 105}}]\n"
    (home.folder / "last.yaml").write_text(last)
    workspace = home.ask("run", "last.yaml")["workspace"]
    home.merlin("run-workers", "last.yaml")
    wait_until(lambda: not home.ask("query-workers"))
    assert home.ask("status", workspace)["state"] == "finished"
