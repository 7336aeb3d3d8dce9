"""Workers in jobs of Flux, LSF and PBS run a study on all nodes; the schedulers are stand-ins, the rest is real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from commands import run_merlin
from schedulers.stand_in import StandIn
from servers import RedisServer
from waiting import wait_until

from merlin.batch.registry import scheduler_of

CHECKOUT = Path(__file__).parents[3]
NUM = 16
NODES = {"node1", "node2"}

# no task ends before there is a file `go`
SPEC = """\
description: {name: hosts, description: every task writes down where it runs}
batch: {type: SCHEDULER, walltime: "1:00:00"}
study:
  - name: sim
    description: one file per sample
    run:
      cmd: "uname -n > where; until test -e $(SPECROOT)/go; do sleep 0.1; done; LAUNCH echo rank >> where; echo $(X)"
      procs: 2
merlin:
  samples: {file: x.csv, column_labels: [X]}
"""


class Site:
    """A folder of a user on a machine with one scheduler."""

    def __init__(self, folder: Path, name: str, redis: RedisServer) -> None:
        self.folder = folder
        login = {"MERLIN_BROKER_URL": redis.url}
        self.stand_in = StandIn(folder / "stand-in", name, num_nodes=2, login=login)
        (folder / "home").mkdir()
        # jsrun cannot start programs of workers that it has started itself
        spec = SPEC.replace("SCHEDULER", name).replace("LAUNCH", "" if name == "lsf" else "$(LAUNCHER)")
        (folder / "hosts.yaml").write_text(spec)
        (folder / "x.csv").write_text("".join(f"{k}\n" for k in range(NUM)))
        self.environment = {**os.environ, **self.stand_in.variables, **login, "HOME": str(folder / "home")}

    def merlin(self, *words: str) -> str:
        done = run_merlin(*words, cwd=self.folder, env=self.environment, timeout=200)
        assert done.returncode == 0, f"merlin {words}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def story(self) -> str:
        logs = [*self.folder.glob("merlin_jobs/*.out"), *self.folder.glob("merlin_logs/*.log")]
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in logs)


@pytest.fixture(params=["flux", "lsf", "pbs"])
def site(request: pytest.FixtureRequest, tmp_path: Path, any_redis: RedisServer) -> Iterator[Site]:
    made = Site(tmp_path, request.param, any_redis)
    yield made
    made.stand_in.close()


def by_merlin(site: Site) -> str:
    submitted = json.loads(site.merlin("workers", "submit", "hosts.yaml", "--nodes", "2", "--json"))
    (job,) = [entry["id"] for entry in submitted["jobs"]]
    return str(job)


def by_hand(site: Site) -> str:
    """The script that comes with Merlin, as its page says that it is submitted."""
    name = site.stand_in.scheduler
    page = (CHECKOUT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    (line,) = re.findall(rf"`([^`]* workers/{name}\.sh[^`]*)`", page)
    command = line.replace(f"workers/{name}.sh", str(CHECKOUT / "workers" / f"{name}.sh"))
    path = f"{site.stand_in.path.partition(os.pathsep)[0]}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/sh", "-c", command.replace("study.yaml", "hosts.yaml")],
        cwd=site.folder,
        env={**site.environment, "PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return scheduler_of(name).submitted_id(done.stdout)


def written(workspace: Path) -> list[list[str]]:
    """What each task that has begun wrote down: the node, then a word of each of its processes."""
    return [words for path in workspace.glob("sim/**/where") if (words := path.read_text().split())]


@pytest.mark.parametrize("submit", [by_merlin, by_hand])
def test_a_job_of_workers_runs_a_study_on_its_nodes_and_ends_with_it(
    site: Site, submit: Callable[[Site], str]
) -> None:
    site.merlin("run", "hosts.yaml")
    job = submit(site)
    (workspace,) = (path.parent for path in site.folder.glob("*/merlin_info"))
    if os.geteuid() == 0:  # only root gives processes another host name
        wait_until(lambda: {words[0] for words in written(workspace)} == NODES, site.story)
    (site.folder / "go").touch()
    site.merlin("monitor", workspace.name, "--sleep", "0.5")
    site.merlin("stop-workers", "--wait", "100")
    wait_until(lambda: site.stand_in.job(job)["state"] == "over", site.story)
    assert site.stand_in.job(job)["code"] == 0, site.story()
    (sim,) = json.loads(site.merlin("status", workspace.name, "--json"))["steps"]
    assert sim["ok"] == NUM, site.story()
    found = written(workspace)
    assert len(found) == NUM
    assert all(words.count("rank") == (1 if site.stand_in.scheduler == "lsf" else 2) for words in found)
