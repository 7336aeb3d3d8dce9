"""Slurm, from 20.11 on, with or without accounting. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from merlin.batch.contract import Allocation, BatchScheduler, Job, JobRequest, JobState, LaunchRequest, Scalar
from merlin.batch.environment import read_count, read_time
from merlin.batch.hostlist import known_hosts
from merlin.batch.shell_words import is_on, joined_words, number_word, one_line, quoted_word, walltime_word
from merlin.batch.walltime import as_clock, epoch_seconds

_ID = re.compile(r"\d+(_(\d+|\[[\d,%:-]+\]))?(\+\d+)?")  # of a job, of an array's task, of a part of a job
_RECORD = re.compile(rf"{_ID.pattern}\|[A-Z_]+[^|]*\|")
_SUBMITTED = re.compile(r"(\d+)(;\S+)?")
_FIELDS = (
    "JobArrayID", "State", "NumNodes", "exit_code", "SubmitTime", "StartTime", "EndTime", "Reason", "NodeList", "Name",
)  # fmt: skip
_SEPARATOR = "|"
_TIME = "%Y-%m-%dT%H:%M:%S"  # or "N/A", "NONE", "Unknown"
_STATES = {  # by long and short names
    JobState.PENDING: (
        "PENDING PD REQUEUED RQ REQUEUE_HOLD RH REQUEUE_FED RF RESV_DEL_HOLD RD SPECIAL_EXIT SE EXPEDITING EX"
    ),
    JobState.RUNNING: (
        "RUNNING R CONFIGURING CF COMPLETING CG RESIZING RS SIGNALING SI STAGE_OUT SO STOPPED ST SUSPENDED S "
        "UPDATE_DB UD POWER_UP_NODE PU"
    ),
    JobState.OK: "COMPLETED CD",
    JobState.FAILED: "FAILED F OUT_OF_MEMORY OOM LAUNCH_FAILED LF RECONFIG_FAIL RECONFIG_FAILED RC",
    JobState.CANCELLED: "CANCELLED CA REVOKED RV",
    JobState.TIMEOUT: "TIMEOUT TO DEADLINE DL",
    JobState.LOST: "NODE_FAIL NF PREEMPTED PR BOOT_FAIL BF",
}
_BY_NAME = {name: state for state, names in _STATES.items() for name in names.split()}
# flag of srun, the step's key, how the value is written
_NUMBERS = (("-c", "cores per task"), ("--gpus", "gpus"), ("--gpus-per-task", "gpus per task"))
# what srun says in a job that has been cancelled or has reached its walltime, and whose processes do not know yet
JOB_IS_OVER = re.compile(
    r"^srun: .*(job \d+ has expired|expired or invalid job|already completing or completed)", re.I | re.M
)
_WORDS = (("--reservation", "reservation"), ("--qos", "qos"))


class Slurm(BatchScheduler):
    name = "slurm"
    title = "Slurm"
    programs = ("sbatch", "squeue", "scancel", "srun")
    prefix = "#SBATCH"
    script_suffix = ".slurm.sh"
    hidden_variables = (
        "SQUEUE_*", "SCANCEL_*", "SLURM_TIME_FORMAT",
        # of the job that this process lives in: a new job would inherit them
        "SLURM_JOB*", "SLURM_STEP*", "SLURM_N*", "SLURM_CPU*", "SLURM_MEM_*", "SLURM_GPU*", "SLURM_TASK*",
        "SLURM_DISTRIBUTION", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_RESTART_COUNT",
        "SLURM_EXCLUSIVE",
    )  # fmt: skip
    launch_variables = (
        "SLURM_CPU_BIND*", "SLURM_DISTRIBUTION", "SLURM_NTASKS*", "SLURM_NPROCS",
    )  # fmt: skip
    knows_none = r"Invalid job id specified"

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
        hosts = known_hosts(environment.get("SLURM_JOB_NODELIST", ""))
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
    found = slurm_state(state)
    return Job(
        id=job,
        name=name,
        state=found,
        num_nodes=int(nodes) if nodes.isdecimal() else None,
        hosts=known_hosts(hosts),
        submitted=epoch_seconds(submitted, _TIME),
        started=epoch_seconds(started, _TIME) if found != JobState.PENDING else None,
        ends=epoch_seconds(ends, _TIME),
        exit_code=_exit_code(code) if found.is_over else None,
        reason="" if reason in ("None", "(null)") else reason,
    )


def slurm_state(text: str) -> JobState:
    """The state of "RUNNING", "PD", "CANCELLED by 1000", "FAILED+"; UNKNOWN for any other word."""
    words = text.upper().split()
    return _BY_NAME.get(words[0].rstrip("+"), JobState.UNKNOWN) if words else JobState.UNKNOWN


def _exit_code(text: str) -> int | None:
    """The code of a wait status, as a shell says it."""
    if not text.isdecimal():
        return None
    status = int(text)
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8 & 0xFF
