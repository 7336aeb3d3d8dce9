"""The commands around a study on workers: real commands, real workers, a real Redis."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from live_processes import processes_inside
from servers import RedisServer, free_port
from user_home import UserHome
from waiting import wait_until

from merlin.config.load import require_config
from merlin.execution.distributed import names
from merlin.execution.distributed.connect import redis_client
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.registry import SILENT_S, WorkerInfo

SPEC = """
description: {name: two, description: two steps on two queues}
study:
  - name: sim
    run:
      task_queue: hot
      cmd: |
        CMD
        echo $(X) > out
  - name: post
    run: {task_queue: cold, depends: [sim], cmd: "cat $(sim.workspace)/$(MERLIN_SAMPLE_PATH)/out"}
merlin:
  resources:
    workers:
      simw: {steps: [sim], args: "--concurrency 2"}
      postw: {steps: [post], args: "-l INFO --concurrency 1"}
  samples: {column_labels: [X], file: samples.csv}
"""
NUM = 12


class Home(UserHome):
    """A user with a broker, a working directory and a spec."""

    def __init__(self, folder: Path, redis: RedisServer) -> None:
        super().__init__(folder, HOME=str(folder / "home"), MERLIN_BROKER_URL=redis.url, MERLIN_LEASE_S="4")
        self.redis = redis
        (folder / "home").mkdir()
        (folder / "samples.csv").write_text("".join(f"{k}\n" for k in range(NUM)))
        self.write("true")

    def write(self, command: str) -> None:
        (self.folder / "two.yaml").write_text(SPEC.replace("CMD", command))

    def workers(self) -> list[dict]:
        return self.ask("query-workers")

    def publish(self) -> Path:
        return Path(self.ask("run", "two.yaml")["workspace"])

    def processes(self) -> list[str]:
        """Live processes that work inside the folder, but for the servers."""
        return [line for line in processes_inside(self.folder) if "redis-server" not in line]

    def close(self) -> None:
        """Every test ends by proving that no process is left."""
        self.merlin("stop-workers", "--now", "--wait", "100", code=None)
        try:
            wait_until(lambda: not self.processes(), self.processes)
        finally:
            for line in self.processes():
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)


@pytest.fixture
def home(tmp_path: Path, any_redis: RedisServer) -> Iterator[Home]:
    made = Home(tmp_path, any_redis)
    yield made
    made.close()


def test_a_study_from_run_to_stop_workers(home):
    published = home.merlin("run", "two.yaml")
    workspace = published.stdout.splitlines()[0].removeprefix("workspace ")
    assert Path(workspace).is_dir()
    assert "24 tasks" in published.stdout
    assert "no worker serves [merlin]_hot, [merlin]_cold" in published.stdout
    assert "merlin run-workers two.yaml" in published.stdout
    assert f"merlin monitor {workspace}" in published.stdout
    assert home.ask("status", workspace)["state"] == "stalled"
    shown = home.merlin("status", workspace).stdout
    assert f"no worker serves queue hot; start some: merlin run-workers {workspace}" in shown
    assert home.ask("queue-info", "--spec", "two.yaml", "--steps", "sim") == {
        "[merlin]_hot": {"depth": 1, "consumers": 0}
    }

    started = home.ask("run-workers", "two.yaml")
    alive = {worker["name"]: worker["alive"][0] for worker in started["workers"]}
    assert {name: info["concurrency"] for name, info in alive.items()} == {"simw": 2, "postw": 1}
    assert all(Path(worker["log"]).parent == home.folder / "merlin_logs" for worker in started["workers"])
    again = home.merlin("run-workers", "two.yaml")
    assert "nothing to start" in again.stdout
    assert "served by simw." in again.stderr

    report = home.ask("monitor", workspace)
    assert (report["ok"], report["exit_code"]) == (2 * NUM, 0)
    assert home.ask("status", workspace)["state"] == "finished"
    assert home.ask("run-workers", "two.yaml")["workers"] == []
    assert {w["pid"] for w in home.workers()} == {w["pid"] for w in alive.values()}
    assert [w["pid"] for w in home.ask("query-workers", "--queues", "hot")] == [alive["simw"]["pid"]]
    assert [w["pid"] for w in home.ask("query-workers", "--workers", "^celery@postw")] == [
        alive["postw"]["pid"]
    ]
    assert len(home.ask("query-workers", "--spec", "two.yaml")) == 2

    stopped = home.ask("stop-workers", "--queues", "cold", "--wait", "100")
    assert (len(stopped["stopped"]), stopped["alive"]) == (1, [])
    assert [w["pid"] for w in home.workers()] == [alive["simw"]["pid"]]
    assert "told to stop" in home.merlin("stop-workers", "--wait", "100").stdout
    assert home.workers() == []
    assert "nothing to stop" in home.merlin("stop-workers").stderr


def test_monitor_ends_with_1_if_a_task_failed_and_restart_runs_it_again(home):
    home.write("test $(X) != 3 || test -e $(SPECROOT)/mended || exit 1")
    workspace = home.publish()
    home.merlin("run-workers", "two.yaml")
    report = home.ask("monitor", str(workspace), code=1)
    assert [report[k] for k in ("ok", "failed", "skipped", "missing")] == [2 * NUM - 2, 1, 1, 0]
    left = home.merlin("restart", str(workspace), code=1).stdout
    assert "nothing is left to run" in left and f"merlin restart {workspace} --failed\n" in left
    kept = home.merlin("restart", str(workspace), "--failed", "--step", "post", code=1).stdout
    assert "nothing of post has failed; 1 task was skipped" in kept
    assert f"merlin restart {workspace} --failed --step sim\n" in kept
    (home.folder / "mended").touch()
    home.merlin("restart", str(workspace), "--failed")
    assert home.ask("monitor", str(workspace))["ok"] == 2 * NUM


@pytest.mark.parametrize("command", ["run", "run-workers"])
def test_a_broker_that_does_not_answer_is_an_error_and_no_local_run(home, command):
    port = free_port()
    done = home.merlin(command, "two.yaml", code=1, MERLIN_BROKER_URL=f"redis://:geheim@127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in done.stderr
    assert ("--local" in done.stderr) == (command == "run")
    assert "geheim" not in done.stderr
    assert not list(home.folder.glob("two_*"))


def test_local_runs_do_not_ask_the_broker(home):
    done = home.merlin("run", "two.yaml", "--local", MERLIN_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert "ok 24" in done.stdout


def test_workers_of_a_local_run_are_refused_where_a_broker_is_configured(home):
    assert "--local" in home.merlin("run", "two.yaml", "--workers", "2", code=2).stderr


def test_a_worker_that_cannot_start_is_told_with_its_last_words(home):
    done = home.merlin("run-workers", "two.yaml", "--steps", "sim", "--worker-args", "--nonsense", code=1)
    assert "worker simw did not start: exit code 2" in done.stderr
    assert "No such option" in done.stderr


def test_monitor_says_which_queue_has_no_worker_and_ctrl_c_leaves_the_study_alone(home):
    workspace = home.publish()
    home.merlin("run-workers", "two.yaml", "--steps", "sim")
    watching = home.start("monitor", str(workspace), "--sleep", "0.2")
    wait_until(lambda: "no worker serves queue cold" in watching.printed()[1], watching)
    watching.send_signal(signal.SIGINT)
    assert "the study goes on" in watching.communicate(timeout=120)[1]
    assert watching.returncode == 130
    assert home.ask("status", str(workspace))["state"] == "stalled"


CHAIN = """
description: {name: chain_$(ITER), description: a study that starts itself again}
env: {variables: {ITER: 1}}
study:
  - name: work
    run:
      cmd: |
        test $(ITER) = 1 && exit 0
        while ! test -e $(SPECROOT)/go; do sleep 0.1; done
        exit 1
  - name: again
    run: {depends: [work], cmd: "PYTHON -m merlin.cli run $(SPECROOT)/chain.yaml --vars ITER=2"}
"""


def test_monitor_of_a_spec_goes_on_with_the_study_that_its_last_step_has_started(home):
    (home.folder / "chain.yaml").write_text(CHAIN.replace("PYTHON", sys.executable))
    outer = home.ask("run", "chain.yaml")["workspace"]
    home.merlin("run-workers", "chain.yaml")
    assert home.ask("monitor", outer)["followed_by"] == []
    watching = home.start("monitor", "chain.yaml", "--sleep", "0.2", "--json")
    told = re.compile("chain_2.*uses the same queues")
    wait_until(lambda: told.search(watching.printed()[1]), watching)
    (home.folder / "go").touch()
    report = json.loads(watching.communicate(timeout=120)[0])
    assert (report["name"], report["ok"], report["exit_code"]) == ("chain_1", 2, 1)
    assert [(r["name"], r["failed"], r["skipped"]) for r in report["followed_by"]] == [("chain_2", 1, 1)]
    assert watching.returncode == 1


def test_cancel_kills_what_runs_shows_it_and_restart_goes_on(home):
    home.write("test -e $(SPECROOT)/quick || { sleep 600 & sleep 601; }")
    workspace = home.publish()
    home.merlin("run-workers", "two.yaml")
    wait_until(lambda: sum("sleep 60" in p for p in home.processes()) == 4, home.processes)
    done = home.merlin("cancel", str(workspace))
    assert "before: 2 chunks run" in done.stdout
    assert "after:  nothing runs" in done.stdout
    assert not [line for line in home.processes() if "sleep 60" in line]
    assert len(home.workers()) == 2
    assert "cancelled" in home.merlin("monitor", str(workspace), code=1).stderr
    with home.redis.client() as client:
        client.flushall()
    assert "cancelled" in home.merlin("monitor", str(workspace), code=1).stderr
    assert home.ask("status", str(workspace))["stop_reason"] == "cancelled"
    wait_until(lambda: len(home.workers()) == 2, home.workers)  # they register again by themselves
    (home.folder / "quick").touch()
    home.merlin("restart", str(workspace))
    assert home.ask("monitor", str(workspace))["ok"] == 2 * NUM


def test_cancel_of_a_step_kills_its_process_trees_and_fails_its_tasks(home):
    home.write("test -e $(SPECROOT)/quick || { sleep 600 & sleep 601; }")
    workspace = home.publish()
    home.merlin("run-workers", "two.yaml")
    wait_until(lambda: sum("sleep 60" in p for p in home.processes()) == 4, home.processes)
    assert "no step" in home.merlin("cancel", str(workspace), "--step", "nonsense", code=2).stderr
    assert home.ask("cancel", str(workspace), "--step", "post")["survivors"] == 0
    assert sum("sleep 60" in p for p in home.processes()) == 4
    done = home.merlin("cancel", str(workspace), "--step", "sim")
    assert "before: 2 chunks run" in done.stdout
    assert "after:  nothing runs" in done.stdout
    assert not [line for line in home.processes() if "sleep 60" in line]
    assert len(home.workers()) == 2
    report = home.ask("monitor", str(workspace), code=1)
    assert [report[k] for k in ("ok", "failed", "skipped", "missing")] == [0, 2 * NUM, 0, 0]
    (home.folder / "quick").touch()
    home.merlin("restart", str(workspace), "--failed")
    assert home.ask("monitor", str(workspace))["ok"] == 2 * NUM


def test_what_a_stopped_worker_holds_survives_a_cancel(home):
    from merlin.execution.distributed.control import cancel
    from merlin.workspace.directory import open_workspace

    home.write("sleep 600 & sleep 601")
    workspace = home.publish()
    home.merlin("run-workers", "two.yaml", "--steps", "sim")
    wait_until(lambda: any("sleep 601" in p for p in home.processes()), home.processes)
    (worker,) = home.workers()
    os.kill(worker["pid"], signal.SIGSTOP)
    report = cancel(open_workspace(workspace), require_config(home.env, cwd=home.folder), limit_s=2.0)
    assert [a.worker for a in report.after] == [worker["name"]] * len(report.before) != []
    os.kill(worker["pid"], signal.SIGCONT)
    wait_until(lambda: not any("sleep 60" in p for p in home.processes()), home.processes)
    assert "after:  nothing runs" in home.merlin("cancel", str(workspace)).stdout


def test_what_a_killed_worker_held_does_not_survive_a_cancel(home):
    home.write("sleep 600 & sleep 601")
    workspace = home.publish()
    home.merlin("run-workers", "two.yaml", "--steps", "sim")
    wait_until(lambda: any(w["running"] for w in home.workers()), home.workers)
    (worker,) = home.workers()
    os.kill(worker["pid"], signal.SIGKILL)
    assert home.ask("cancel", str(workspace))["survivors"] == 0
    wait_until(lambda: not any("sleep 60" in p for p in home.processes()), home.processes)


def test_cancel_of_a_spec_names_the_newest_workspace(home):
    workspace = home.publish()
    assert f"merlin cancel {workspace}" in home.merlin("cancel", "two.yaml", code=2).stderr


def test_purge_empties_the_queues_and_stops_the_study_for_good(home):
    workspace = home.publish()
    assert "--force" in home.merlin("purge", "two.yaml", code=2).stderr
    purged = home.ask("purge", "two.yaml", "--force")
    assert purged["queues"] == {"[merlin]_hot": 1, "[merlin]_cold": 0}
    assert [study["workspace"] for study in purged["studies"]] == [str(workspace)]
    assert home.ask("status", str(workspace))["stop_reason"] == "purged"
    assert "purged" in home.merlin("monitor", str(workspace), code=1).stderr
    assert home.ask("doctor")["findings"][-2]["detail"].endswith("0 open studies")
    home.merlin("restart", str(workspace))
    home.merlin("run-workers", str(workspace))
    assert home.ask("monitor", str(workspace))["ok"] == 2 * NUM


def test_monitor_publishes_a_study_again_that_redis_has_lost(home):
    workspace = home.publish()
    watching = home.start("monitor", str(workspace), "--sleep", "0.2")
    wait_until(lambda: "\n" in watching.printed()[1], watching)
    with home.redis.client() as client:
        client.flushall()
    wait_until(lambda: "published again, from its ledger" in watching.printed()[1], watching)
    assert "Redis has lost the study's progress" in watching.printed()[1]
    home.merlin("run-workers", "two.yaml")
    out, err = watching.communicate(timeout=120)
    assert watching.returncode == 0, err
    assert "planned 24 = ok 24" in out


def test_a_published_study_does_not_run_here_as_well(home):
    workspace = home.publish()
    done = home.merlin("restart", str(workspace), "--local", code=1)
    assert f"merlin cancel {workspace}" in done.stderr
    home.merlin("cancel", str(workspace))
    home.merlin("restart", str(workspace), "--local")


def test_workers_in_the_foreground_end_when_they_are_told_to(home):
    command = home.start("run-workers", "two.yaml", "--foreground", "--steps", "sim")
    wait_until(lambda: "1 worker started" in command.printed()[0], command)
    command.terminate()
    command.communicate(timeout=120)
    assert command.returncode == 0
    assert home.workers() == []


def test_doctor_finds_servers_and_workers(home):
    findings = {f["component"]: f for f in home.ask("doctor")["findings"]}
    assert findings["broker"]["version"].startswith("Redis ")
    assert findings["broker"]["latency_ms"] > 0
    assert findings["permission"]["status"] == "ok"
    broken = home.merlin("doctor", "--json", code=1, MERLIN_BROKER_URL=f"redis://127.0.0.1:{free_port()}/0")
    assert "refuses connections" in broken.stdout


def test_of_many_silent_workers_some_are_named(home):
    config = require_config(home.env, cwd=home.folder)
    with redis_client(config) as client:
        registry = RedisRegistry(client, config)
        for k in range(23):
            fields = {"pid": 1, "queues": [], "concurrency": 1, "started": 0.0, "version": "1"}
            now = registry.beat(WorkerInfo(name=f"w{k:02}", host="h", **fields))
            client.zadd(names.Keys(config.namespace).beats, {f"w{k:02}": now - 2 * SILENT_S})
    told = home.merlin("query-workers").stderr.splitlines()
    assert [line.split()[0] for line in told[1:]] == [*(f"w{k:02}" for k in range(20)), "and"]
    assert told[-1] == "and 3 more are silent"


def test_a_specs_own_workspace_chooses_its_workers(home):
    workspace = home.publish()
    by_spec = home.ask("run-workers", "two.yaml", "--echo")
    assert home.ask("run-workers", str(workspace), "--echo") == by_spec
    assert [worker["name"] for worker in by_spec["workers"]] == ["simw", "postw"]


def test_the_same_commands_with_rabbitmq(home, any_rabbit):
    home.env |= {"MERLIN_BROKER_URL": any_rabbit.url, "MERLIN_BACKEND_URL": home.redis.url}
    workspace = home.publish()
    queues = {"[merlin]_hot": {"depth": 1, "consumers": 0}, "[merlin]_cold": {"depth": 0, "consumers": 0}}
    assert home.ask("queue-info", "--spec", "two.yaml") == queues
    assert home.ask("purge", "two.yaml", "--force")["queues"] == {"[merlin]_hot": 1, "[merlin]_cold": 0}
    home.merlin("restart", str(workspace))
    home.merlin("run-workers", "two.yaml")
    assert home.ask("monitor", str(workspace))["ok"] == 2 * NUM
    assert home.ask("queue-info", "--specific-queues", "hot")["[merlin]_hot"]["consumers"] == 1
    findings = {f["component"]: f for f in home.ask("doctor")["findings"]}
    assert findings["broker"]["version"].startswith("RabbitMQ 3.")
    assert findings["backend"]["version"].startswith("Redis ")


def test_a_queue_that_somebody_else_declared_is_named_with_the_remedy(home, any_rabbit):
    home.env |= {"MERLIN_BROKER_URL": any_rabbit.url, "MERLIN_BACKEND_URL": home.redis.url}
    queue = require_config(home.env, cwd=home.folder).queue_name("hot")
    delete = f"rabbitmqctl --vhost {any_rabbit.vhost} delete_queue '{queue}'"
    with any_rabbit.connection() as connection, connection.channel() as channel:
        channel.queue_declare(queue, durable=False, auto_delete=False)
        try:
            refused = home.merlin("run", "two.yaml", code=1).stderr
            assert f"has a queue {queue} that is not as we declare it" in refused
            assert delete in refused
            assert "internal error" not in refused
            dead = home.merlin("run-workers", "two.yaml", "--steps", "sim", code=1).stderr
            assert "worker simw did not start: exit code 1" in dead
            assert delete in dead
            assert "Traceback" not in (home.folder / "merlin_logs" / "simw.log").read_text()
            findings = {f["component"]: f for f in home.ask("doctor", code=1)["findings"]}
            assert findings["queues"]["status"] == "broken"
            assert delete in findings["queues"]["hint"]
        finally:
            channel.queue_delete(queue)
    assert "is not as we declare it" not in home.merlin("doctor").stdout


def test_a_copy_of_a_study_that_workers_run_cannot_act_on_it(home):
    study = home.publish()
    copy = study.with_name("copy")
    shutil.copytree(study, copy)
    for command in ("cancel", "restart"):
        refused = home.merlin(command, copy, code=2)
        assert f"{copy} is a copy of {study}" in refused.stderr
    assert home.ask("status", study)["state"] == "stalled"
    assert home.ask("cancel", study)["survivors"] == 0


def test_a_study_whose_workspace_was_deleted_can_be_cancelled(home):
    study = home.publish()
    shutil.rmtree(study)
    hints = {f["component"]: f["hint"] for f in home.ask("doctor", code=None)["findings"]}
    assert f"merlin cancel {study}" in hints["studies"]
    home.merlin("run-workers", "two.yaml", "--steps", "sim")
    assert "workers have no study" in home.merlin("cancel", study.with_name("typo"), code=2).stderr
    done = home.merlin("cancel", study)
    assert "after:  nothing runs" in done.stdout
    assert f"ended the study of {study}" in done.stdout
    assert "studies" not in {f["component"] for f in home.ask("doctor")["findings"]}
    assert "workers have no study" in home.merlin("cancel", study, code=2).stderr


def test_a_worker_does_not_obey_commands_that_were_sent_to_a_dead_one_of_its_name(home):
    home.merlin("run-workers", "two.yaml", "--steps", "post")
    (worker,) = home.workers()
    os.kill(worker["pid"], signal.SIGKILL)
    config = require_config(home.env, cwd=home.folder)
    registry = RedisRegistry(redis_client(config), config)
    registry.send([worker["name"]], "stop")
    wait_until(lambda: not home.processes(), home.processes)
    home.merlin("run-workers", "two.yaml", "--steps", "post")
    wait_until(lambda: any(w["pid"] != worker["pid"] for w in home.workers()), home.workers)
    assert registry.receive(worker["name"]) == ([], 0)
