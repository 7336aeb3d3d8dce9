"""The tests that every implementation of `merlin.batch.contract.BatchScheduler` must pass.

class TestMine(SchedulerContract):
    scheduler = Mine()
    submitted = [("what its submit command prints", "the id"), …]
    listed = [("what its list command prints", [Job(…), …]), …]
    environment = {…}           # of a process in one of its jobs
    allocation = Allocation(…)  # what this environment says
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from msgspec.structs import replace

from merlin.batch.contract import Allocation, BatchScheduler, Job, JobRequest, JobState, LaunchRequest, Scalar

T = TypeVar("T")
REQUEST = JobRequest(
    name="study-workers-1",
    nodes=3,
    cores_per_task=7,
    gpus=2,
    walltime_s=5400.0,
    bank="physics",
    queue="pdebug",
    reservation="maintenance",
    qos="standby",
    is_exclusive=True,
    excluded_hosts=("node17", "node23"),
    output="/a/b c/100%.out",
    error="/a/b c/100%.err",
    may_requeue=True,
)
STEP: Mapping[str, Scalar] = {
    "nodes": 2,
    "procs": 8,
    "cores per task": 3,
    "gpus per task": 1,
    "walltime": "01:30:00",
    "exclusive": True,
    "exclusive.launcher": True,
    "reservation": "maintenance",
    "qos": "standby",
    "slurm": "--mpi=none",
    "flux": "-o fastload=on",
    "lsf": "--smpiargs=off",
    "pbs": "-print-rank-map",
    "bind": "rs",
    "bind gpus": "none",
    "num resource set": 4,
    "tasks per rs": 2,
    "rs per node": 2,
    "cpus per rs": 6,
    "launch_distribution": "packed",
    "exit_on_error": 1,
    "nested": True,
    "waitable": True,
    "priority": "high",
}
GARBLED = ("garbled: \x00\x1b[0m |", "{", "}{", "Traceback (most recent call last):", "ü" * 1000)
OUTSIDE: Mapping[str, str] = {"HOME": "/root", "PATH": "/usr/bin", "USER": "root", "LANG": "C.UTF-8"}


def refuses(call: Callable[[T], object], value: T) -> bool:
    try:
        call(value)
    except ValueError:
        return True
    return False


class SchedulerContract:
    """What users, job scripts and the client of `merlin.batch.jobs` rely on."""

    scheduler: BatchScheduler
    submitted: Sequence[tuple[str, str]] = ()
    listed: Sequence[tuple[str, Sequence[Job]]] = ()
    environment: Mapping[str, str] = {}
    allocation: Allocation
    unwritten: Sequence[str] = ()  # fields of a request that this scheduler has no words for
    mentions: Sequence[str] = ("physics", "pdebug", "/a/b c/")  # REQUEST's words that directives need

    def test_a_launch_line_is_one_line_of_whole_words(self) -> None:
        broken = {key: f"{value}\n-x" if isinstance(value, str) else value for key, value in STEP.items()}
        for resources in ({}, STEP, broken | {"walltime": "90"}):
            request = LaunchRequest(procs="8", nodes="2", resources=resources, launch_args="a\nb")
            line = self.scheduler.launch_line(request)
            assert line.isprintable() and line == line.strip()
            assert shlex.split(line)[-2:] == ["a", "b"]

    def test_text_before_the_launcher_and_its_further_arguments_stand_as_written(self) -> None:
        plain = self.scheduler.launch_line(LaunchRequest(procs="4", nodes="2"))
        pre, more = "env A='b  c'", "--label --x='d  e'"
        line = self.scheduler.launch_line(
            LaunchRequest(procs="4", nodes="2", launch_pre=pre, launch_args=more)
        )
        assert line == f"{pre} {plain} {more}"

    def test_shell_variables_stay_variables(self) -> None:
        request = LaunchRequest(
            procs="${MERLIN_PROCS}",
            nodes="${MERLIN_NODES}",
            resources={"cores per task": "${MERLIN_CORES}", "gpus per task": "$(GPUS)", "walltime": "$(T)"},
        )
        line = self.scheduler.launch_line(request)
        assert "${MERLIN_PROCS}" in line and "'" not in line

    def test_a_number_that_is_none_is_refused(self) -> None:
        for hostile in ("4; rm -rf x", "$(rm -rf x)", "`id`", "-1", "4 4"):
            assert refuses(self.scheduler.launch_line, LaunchRequest(procs=hostile))

    def test_the_directives_hold_every_field(self) -> None:
        lines = self.scheduler.directives(REQUEST)
        assert all(line.startswith(self.scheduler.prefix) and line.isprintable() for line in lines)
        for text in self.mentions:
            assert any(text in line for line in lines), f"{text!r} is in none of {lines}"
        others: dict[str, JobRequest] = {
            "name": replace(REQUEST, name="another"),
            "nodes": replace(REQUEST, nodes=5),
            "procs": replace(REQUEST, procs=15),
            "cores_per_task": replace(REQUEST, cores_per_task=11),
            "walltime_s": replace(REQUEST, walltime_s=7260.0),
            "bank": replace(REQUEST, bank="other"),
            "queue": replace(REQUEST, queue="other"),
            "output": replace(REQUEST, output="/other"),
            "error": replace(REQUEST, error="/other"),
        }
        for field, other in others.items():
            is_written = self.scheduler.directives(other) != lines
            assert is_written == (field not in self.unwritten), f"{field}: {other}"

    def test_a_small_request_has_no_empty_directives(self) -> None:
        for line in self.scheduler.directives(JobRequest(name="small")):
            words = line.removeprefix(self.scheduler.prefix).split()
            assert words and not words[-1].endswith("=") and "None" not in line, line

    def test_job_ids_are_found_in_what_the_submit_command_prints(self) -> None:
        assert self.submitted
        for output, job in self.submitted:
            assert self.scheduler.submitted_id(output) == job
            assert job in self.scheduler.cancel_command([job, "7"])
        for output in ("", "\n \n", *GARBLED):
            assert refuses(self.scheduler.submitted_id, output), output

    def test_jobs_are_found_in_what_the_list_command_prints(self) -> None:
        assert self.listed
        for output, jobs in self.listed:
            assert self.scheduler.listed_jobs(output) == list(jobs)

    def test_a_garbled_list_is_refused_and_no_empty_one(self) -> None:
        for output in GARBLED:
            assert refuses(self.scheduler.listed_jobs, output), output

    def test_an_unknown_state_is_unknown(self) -> None:
        """Every list of `listed` has a job that the scheduler calls WEIRD."""
        for output, jobs in self.listed:
            unknown = [job for job in jobs if job.state == JobState.UNKNOWN]
            assert bool(unknown) == ("WEIRD" in output)
        assert any("WEIRD" in output for output, _ in self.listed)

    def test_one_question_is_about_many_jobs(self) -> None:
        ids = [job for _, job in self.submitted]
        command = self.scheduler.list_command([*ids * 1000])
        assert command[0] in (*self.scheduler.programs, "/bin/sh") and self.scheduler.list_command([])
        assert all(isinstance(word, str) and "\n" not in word for word in command)

    def test_an_allocation_is_read_from_its_environment(self) -> None:
        assert self.scheduler.allocation(self.environment) == self.allocation
        assert self.scheduler.allocation({**OUTSIDE, **self.environment}) == self.allocation

    def test_outside_of_an_allocation_there_is_none(self) -> None:
        assert self.scheduler.allocation({}) is None
        assert self.scheduler.allocation(OUTSIDE) is None

    def test_a_garbled_environment_ends_nothing(self) -> None:
        for name in self.environment:
            for value in ("", " ", "a b", "\x1b\n", "9" * 40, "n[1-99999999999]", "-1", "½"):
                found = self.scheduler.allocation({**self.environment, name: value})
                assert found is None or (found.num_nodes >= 1 and found.job)

    def test_workers_start_on_every_node(self) -> None:
        for num in (None, 1, 3):
            words = self.scheduler.workers_command(num, {})
            assert all(word and word.isprintable() for word in words)
