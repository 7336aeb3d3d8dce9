"""Slurm, from 20.11 on, with or without accounting. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar

from merlin.batch.contract import (
    Allocation,
    BatchScheduler,
    Job,
    JobRequest,
    JobState,
    LaunchRequest,
    Scalar,
)
from merlin.batch.environment import read_count, read_time
from merlin.batch.hostlist import expand_hosts
from merlin.batch.shell_words import (
    is_on,
    joined_words,
    number_word,
    one_line,
    quoted_word,
    walltime_word,
)
from merlin.batch.slurm_states import slurm_state
from merlin.batch.walltime import as_clock

_ID = re.compile(r"\d+(_(\d+|\[[\d,%:-]+\]))?(\+\d+)?")  # of a job, of an array's task, of a part of a job
_RECORD = re.compile(rf"{_ID.pattern}\|[A-Z_]+[^|]*\|")
_SUBMITTED = re.compile(r"(\d+)(;\S+)?")
_FIELDS = (
    "JobArrayID", "State", "NumNodes", "exit_code", "SubmitTime", "StartTime", "EndTime", "Reason", "NodeList", "Name",
)  # fmt: skip
_SEPARATOR = "|"
# flag of srun, the step's key, how the value is written
_NUMBERS = (("-c", "cores per task"), ("--gpus", "gpus"), ("--gpus-per-task", "gpus per task"))
# what srun says in a job that has been cancelled or has reached its walltime, and whose processes do not know yet
JOB_IS_OVER = re.compile(
    r"^srun: .*(job \d+ has expired|expired or invalid job|already completing or completed)", re.I | re.M
)
_WORDS = (("--reservation", "reservation"), ("--qos", "qos"))


class Slurm(BatchScheduler):
    name: ClassVar[str] = "slurm"
    title: ClassVar[str] = "Slurm"
    programs: ClassVar[tuple[str, ...]] = ("sbatch", "squeue", "scancel", "srun")
    prefix: ClassVar[str] = "#SBATCH"
    script_suffix: ClassVar[str] = ".slurm.sh"
    hidden_variables: ClassVar[tuple[str, ...]] = (
        *("SQUEUE_*", "SCANCEL_*", "SLURM_TIME_FORMAT"),
        # of the job that this process lives in: a new job would inherit them
        *("SLURM_JOB*", "SLURM_STEP*", "SLURM_N*", "SLURM_CPU*", "SLURM_MEM_*", "SLURM_GPU*", "SLURM_TASK*"),
        *(
            "SLURM_DISTRIBUTION",
            "SLURM_PROCID",
            "SLURM_LOCALID",
            "SLURM_GTIDS",
            "SLURM_RESTART_COUNT",
            "SLURM_EXCLUSIVE",
        ),
    )
    launch_variables: ClassVar[tuple[str, ...]] = (
        "SLURM_CPU_BIND*", "SLURM_DISTRIBUTION", "SLURM_NTASKS*", "SLURM_NPROCS",
    )  # fmt: skip
    knows_none: ClassVar[str] = r"Invalid job id specified"

    def launch_line(self, request: LaunchRequest) -> str:
        step = request.resources
        nodes = f"-N {number_word(request.nodes, 'nodes')}" if request.nodes else ""
        return joined_words(
            one_line(request.launch_pre, "launch_pre"),
            f"srun -n {number_word(request.procs, 'procs')}",
            nodes,
            *_launch_flags(step),
            one_line(str(step.get("slurm", "")), "slurm"),
            one_line(request.launch_args, "launch_args"),
        )

    def workers_command(
        self, num_nodes: int | None, batch: Mapping[str, Scalar], hosts: Sequence[str] = ()
    ) -> list[str]:
        if own := batch.get("worker_launch"):
            return shlex.split(str(own))
        n = str(num_nodes or 1)
        walltime = walltime_word(batch.get("walltime", ""), as_clock) if batch.get("walltime") else ""
        given = (("-A", batch.get("bank")), ("-p", batch.get("queue")), ("-t", walltime))
        where = ["-w", ",".join(hosts)] if hosts else []
        flags = [word for flag, value in given if value for word in (flag, str(value))]
        # --overlap: job steps that the worker's tasks start can use all cores, and the worker is not tied to one core
        return ["srun", "-N", n, "-n", n, "--overlap", "--cpu-bind=none", *flags, *where]

    def directives(self, request: JobRequest) -> list[str]:
        return [f"{self.prefix} {line}" for line in _directives(request)]

    def submit_command(self, script: str) -> list[str]:
        return ["sbatch", "--parsable", script]

    def submitted_id(self, output: str) -> str:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        match = _SUBMITTED.fullmatch(lines[-1]) if lines else None
        if match is None:
            raise ValueError(f"sbatch named no job: {output[-200:]!r}")
        return match[1]

    def list_command(self, ids: Sequence[str]) -> list[str]:
        # not --jobs: one that Slurm has forgotten would be an error, and the others would have no answer
        fields = ",".join(f"{name}:{_SEPARATOR}" for name in _FIELDS)
        return ["squeue", "--me", "--noheader", "--states=all", "-O", fields]

    def listed_jobs(self, output: str) -> list[Job]:
        return [_listed_job(record) for record in _records(output)]

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["scancel", *ids]

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        job = environment.get("SLURM_JOB_ID", "")
        if not _ID.fullmatch(job):
            return None
        try:
            hosts = expand_hosts(environment.get("SLURM_JOB_NODELIST", ""))
        except ValueError:  # the number of nodes is still of use
            hosts = ()
        return Allocation(
            scheduler=self.name,
            job=job,
            num_nodes=read_count(environment, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or len(hosts) or 1,
            hosts=hosts,
            host=environment.get("SLURMD_NODENAME", ""),
            cores=read_count(environment, "SLURM_CPUS_ON_NODE"),
            ends=read_time(environment, "SLURM_JOB_END_TIME"),
        )

    def side_by_side(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Without these, a program takes all cores of its nodes and all memory of the job, and the next one waits."""
        memory = {"SLURM_MEM_PER_NODE": "0"} if "SLURM_MEM_PER_NODE" in environment else {}
        return {"SLURM_EXACT": "1", **memory}


def _launch_flags(step: Mapping[str, Scalar]) -> Iterator[str]:
    for flag, key in _NUMBERS:
        if step.get(key):
            yield f"{flag}{' ' if len(flag) == 2 else '='}{number_word(step[key], key)}"
    if step.get("walltime") and (walltime := walltime_word(step["walltime"], as_clock)):
        yield f"-t {walltime}"
    if is_on(step.get("exclusive.launcher", False)):
        yield "--exclusive"
    for flag, key in _WORDS:
        if step.get(key):
            yield f"{flag}={quoted_word(step[key], key)}"


def _directives(request: JobRequest) -> Iterator[str]:
    def given(flag: str, value: object) -> Iterator[str]:
        if value is not None and value != "":
            yield f"--{flag}={shlex.quote(str(value))}"

    yield from given("job-name", request.name)
    yield from given("nodes", request.nodes)
    yield from given("ntasks", request.procs)
    yield from given("cpus-per-task", request.cores_per_task)
    yield from given("gres", f"gpu:{request.gpus}" if request.gpus else None)
    yield from given("time", None if request.walltime_s is None else as_clock(request.walltime_s))
    yield from given("account", request.bank)
    yield from given("partition", request.queue)
    yield from given("reservation", request.reservation)
    yield from given("qos", request.qos)
    if request.is_exclusive:
        yield "--exclusive"
    yield from given("exclude", ",".join(request.excluded_hosts))
    yield from given("output", request.output.replace("%", "%%"))
    yield from given("error", request.error.replace("%", "%%"))
    yield "--requeue" if request.may_requeue else "--no-requeue"
    if request.may_requeue:
        yield "--open-mode=append"


def _records(output: str) -> list[str]:
    """The record of each job. It ends with the job's name, because users put line breaks into names."""
    records: list[str] = []
    for line in output.split("\n"):
        if _RECORD.match(line) or not records:
            records.append(line)
        else:
            records[-1] += f"\n{line}"
    return [record for record in records if record.strip()]


def _listed_job(record: str) -> Job:
    values = record.strip().removesuffix(_SEPARATOR).split(_SEPARATOR, len(_FIELDS) - 1)
    is_whole = record.rstrip().endswith(_SEPARATOR) and len(values) == len(_FIELDS)
    if not is_whole or not _ID.fullmatch(values[0].strip()):
        raise ValueError(f"squeue did not list a job: {record[:200]!r}")
    job, state, nodes, code, submitted, started, ends, reason, hosts, name = (v.strip() for v in values)
    try:
        where = expand_hosts(hosts)
    except ValueError:  # "(null)", "None assigned"
        where = ()
    found = slurm_state(state)
    return Job(
        id=job,
        name=name,
        state=found,
        num_nodes=int(nodes) if nodes.isdecimal() else None,
        hosts=where,
        submitted=_epoch(submitted),
        started=_epoch(started) if found != JobState.PENDING else None,
        ends=_epoch(ends),
        exit_code=_exit_code(code) if found.is_over else None,
        reason="" if reason in ("None", "(null)") else reason,
    )


def _epoch(text: str) -> float | None:
    """The seconds of "2026-11-23T13:01:00" in UTC; None for "N/A", "NONE", "Unknown"."""
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _exit_code(text: str) -> int | None:
    """The code of a wait status, as a shell says it."""
    if not text.isdecimal():
        return None
    status = int(text)
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8 & 0xFF
