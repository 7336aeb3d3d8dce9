"""Real jobs by the words of Flux, LSF and PBS, on stand-ins that know the options of the real tools."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from schedulers.stand_in import StandIn
from waiting import wait_until

from merlin.batch.contract import Job, JobRequest, JobState, LaunchRequest
from merlin.batch.here import allocation_here, client_here
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import scheduler_of
from merlin.batch.script import job_script
from merlin.errors import SchedulerRefusedError, SchedulerUnreachableError


class Site:
    """A machine with one scheduler."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.stand_in = StandIn(folder / "stand-in", name)
        self.scheduler = scheduler_of(name)
        self.client = self.new_client()

    def new_client(self, limit_s: float = 60.0) -> SchedulerClient:
        environment = {**os.environ, **self.stand_in.variables}
        return SchedulerClient(
            self.scheduler, environment=environment, polls_per_minute=10_000, limit_s=limit_s
        )

    def request(self, name: str, **more: object) -> JobRequest:
        return JobRequest(name=name, output=str(self.folder / f"{name}.out"), **more)  # type: ignore[arg-type]

    def submit(self, request: JobRequest, body: str) -> str:
        script = self.folder / f"{request.name}.sh"
        script.write_text(job_script(self.scheduler, request, body))
        return self.client.submit(request.name, str(script))

    def job(self, job: str) -> Job:
        return self.client.jobs([job])[job]

    def wait(self, job: str, *states: JobState) -> Job:
        wait_until(lambda: self.job(job).state in states, lambda: str(self.job(job)))
        return self.job(job)


@pytest.fixture(params=["flux", "lsf", "pbs"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path, request.param)
    yield made
    made.stand_in.close()


def test_a_job_runs_programs_on_its_nodes_and_ends_as_its_script(site: Site) -> None:
    launch = site.scheduler.launch_line(LaunchRequest(procs="4", nodes="2"))
    workers = " ".join(site.scheduler.workers_command(2, {}))
    body = (
        f"env -0 > {site.folder}/env.part\nmv {site.folder}/env.part {site.folder}/env\n"
        f"{workers} sh -c 'echo worker $(uname -n)'\n{launch} echo task\n"
        f"while ! test -e {site.folder}/seen; do sleep 0.05; done\nexit 3"
    )
    job = site.submit(site.request("whole", nodes=2, walltime_s=3600.0, cores_per_task=1), body)
    wait_until((site.folder / "env").exists, lambda: str(site.job(job)))
    entries = (site.folder / "env").read_text().split("\0")
    variables = dict(entry.split("=", 1) for entry in entries if entry)
    found = allocation_here(variables, client=client_here(variables))
    (site.folder / "seen").touch()
    assert found is not None, variables
    assert (found.scheduler, found.job) == (site.scheduler.name, job)
    assert found.num_nodes == 2 and set(found.hosts) <= {"node1", "node2"}
    assert found.ends is not None
    ended = site.wait(job, JobState.FAILED)
    assert (ended.name, ended.exit_code, ended.num_nodes) == ("whole", 3, 2)
    words = (site.folder / "whole.out").read_text().split()
    assert words.count("worker") == 2 and words.count("task") == 4


def test_a_running_job_says_where_it_runs_and_when_it_ends(site: Site) -> None:
    job = site.submit(site.request("long", nodes=2, walltime_s=3600.0), "sleep 600")
    running = site.wait(job, JobState.RUNNING)
    assert set(running.hosts) == {"node1", "node2"} and running.ends is not None
    found = site.client.find("long")
    assert found is not None and found.id == job and site.client.find("short") is None
    waiting = site.submit(site.request("waits", nodes=2), "true")
    assert site.job(waiting).state == JobState.PENDING
    site.client.cancel([job, waiting])
    assert site.wait(job, JobState.CANCELLED) and site.wait(waiting, JobState.CANCELLED)
    site.client.cancel([job])  # which is over


def test_a_job_that_is_over_is_found_by_its_name_without_a_question_about_all_that_are(site: Site) -> None:
    job, other = (site.submit(site.request(name), "true") for name in ("one", "other"))
    site.wait(other, JobState.OK)
    site.wait(job, JobState.OK)
    found = site.client.find("one")
    assert found is not None and (found.id, found.state) == (job, JobState.OK)
    if site.stand_in.scheduler == "pbs":  # which may remember them for weeks
        assert site.stand_in.calls[-1] == ["qstat", "-x", "-f", "-F", "json", job]
        assert site.client.every_job() == []


def test_what_a_job_left_behind_ends_with_it(site: Site) -> None:
    job = site.submit(site.request("leaves"), f"setsid sleep 600 & echo $! > {site.folder}/pid\nsleep 600")
    wait_until((site.folder / "pid").exists, lambda: "no process")
    pid = int((site.folder / "pid").read_text())
    site.client.cancel([job])
    site.wait(job, JobState.CANCELLED)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_the_walltime_ends_a_job(site: Site) -> None:
    body = f"touch {site.folder}/ready\nwhile true; do sleep 0.05; done"
    job = site.submit(site.request("limited", walltime_s=3600.0), body)
    wait_until((site.folder / "ready").exists, lambda: str(site.job(job)))
    site.stand_in.let_pass(job, 3200.0)
    assert site.job(job).state == JobState.RUNNING
    site.stand_in.let_pass(job, 3600.0)
    assert site.wait(job, JobState.TIMEOUT)


def test_the_death_of_a_node_is_a_loss_and_a_job_that_may_starts_again(site: Site) -> None:
    job = site.submit(site.request("dies"), "sleep 600")
    site.wait(job, JobState.RUNNING)
    site.stand_in.lose_node(job)
    assert site.wait(job, JobState.LOST)
    if site.stand_in.scheduler != "flux":  # which starts nothing again
        again = site.submit(
            site.request("again", may_requeue=True),
            f"[ -e {site.folder}/first ] || {{ touch {site.folder}/first; sleep 600; }}",
        )
        wait_until((site.folder / "first").exists, lambda: str(site.job(again)))
        site.stand_in.lose_node(again)
        assert site.wait(again, JobState.OK).exit_code == 0


def test_a_scheduler_that_fails_or_babbles_is_an_error_and_no_empty_list(site: Site) -> None:
    job = site.submit(site.request("asked"), "sleep 600")
    lists = {"flux": "flux-jobs", "lsf": "bjobs", "pbs": "qstat"}[site.stand_in.scheduler]
    site.stand_in.fault(lists, code=1, prints="cannot connect to the server")
    with pytest.raises(SchedulerUnreachableError, match="cannot connect to the server"):
        site.new_client().jobs([job])
    site.stand_in.fault(lists, code=0, prints="Segmentation fault {")
    with pytest.raises(SchedulerUnreachableError, match="Segmentation fault"):
        site.new_client().jobs([job])
    site.stand_in.fault(lists, hangs=True)
    with pytest.raises(SchedulerUnreachableError, match="no answer in time"):
        site.new_client(limit_s=0.5).jobs([job])
    site.stand_in.heal()
    assert site.wait(job, JobState.RUNNING)


def test_a_job_that_the_scheduler_does_not_know_is_unknown_beside_others(site: Site) -> None:
    job = site.submit(site.request("known"), "sleep 600")
    unknown = {"flux": "f12345", "lsf": "9999", "pbs": "9999.pbs"}[site.stand_in.scheduler]
    found = site.client.jobs([job, unknown])
    assert found[job].state in (JobState.PENDING, JobState.RUNNING)
    assert found[unknown].state == JobState.UNKNOWN
    assert site.new_client().jobs([unknown])[unknown].state == JobState.UNKNOWN


def test_an_option_that_the_real_tool_does_not_have_is_refused_in_its_words(site: Site) -> None:
    script = site.folder / "wrong.sh"
    script.write_text(f"#!/bin/sh\n{site.scheduler.prefix} --no-such-option\ntrue\n")
    with pytest.raises(SchedulerRefusedError, match=r"no-such-option"):
        site.client.submit("wrong", str(script))
