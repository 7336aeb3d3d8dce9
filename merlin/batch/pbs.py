"""PBS (OpenPBS, PBS Pro): ``mpiexec`` inside an allocation, ``qsub`` for jobs."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from merlin.batch.contract import Allocation, BatchScheduler, Job, JobRequest, JobState, LaunchRequest, Scalar
from merlin.batch.environment import read_count
from merlin.batch.shell_words import joined_words, number_word, one_line
from merlin.batch.walltime import as_clock, epoch_seconds, walltime_seconds

_ID = re.compile(r"\d+(\[\d*\])?(\.[\w.-]+)?")
# without -x or a name, as PBS may remember many thousands of this user's jobs
_SELECTED = 'ids=$(qselect "$@" -u "$(id -un)") || exit; [ -z "$ids" ] || exec qstat -x -f -F json $ids'

_STATES = {**dict.fromkeys("QHWT", JobState.PENDING), **dict.fromkeys("RBESU", JobState.RUNNING)}
_OVER = ("F", "X")
_TIME = "%a %b %d %H:%M:%S %Y"
_TERMINATED = 91  # the substate of a job that qdel ended
_BY_WALLTIME = (-11, -29)  # exit statuses that PBS gives, not the job
_LOST = (-4, -5, -6)  # the server or the host started again


class Pbs(BatchScheduler):
    name = "pbs"
    title = "PBS"
    programs = ("qsub", "qstat", "qdel", "mpiexec")
    prefix = "#PBS"
    script_suffix = ".pbs.sh"
    hidden_variables = ("PBS_DPREFIX",)
    knows_none = r"Unknown Job Id"

    def launch_line(self, request: LaunchRequest) -> str:
        """No flags for cores and GPUs: the chunks of the allocation have them, and mpiexec's differ by MPI."""
        procs = number_word(request.procs, "procs")
        nodes = number_word(request.nodes, "nodes") if request.nodes else ""
        return joined_words(
            one_line(request.launch_pre, "launch_pre"),
            f"mpiexec -n {procs}",
            _per_node(procs, nodes),
            one_line(str(request.resources.get("pbs", "")), "pbs"),
            one_line(request.launch_args, "launch_args"),
        )

    def workers_command(
        self, num_nodes: int | None, batch: Mapping[str, Scalar], hosts: Sequence[str] = ()
    ) -> list[str]:
        if own := batch.get("worker_launch"):
            return shlex.split(str(own))
        where = ["--host", ",".join(hosts)] if hosts else []
        return [] if num_nodes is None else ["mpiexec", "-n", str(num_nodes), *where]

    def directives(self, request: JobRequest) -> list[str]:
        return [f"{self.prefix} {line}" for line in _directives(request)]

    def submit_command(self, script: str) -> list[str]:
        return ["qsub", script]

    def submitted_id(self, output: str) -> str:
        words = output.split()
        if not words or not _ID.fullmatch(words[-1]):
            raise ValueError(f"qsub named no job: {output[-200:]!r}")
        return words[-1]

    def list_command(self, ids: Sequence[str]) -> list[str]:
        if ids:
            return ["qstat", "-x", "-f", "-F", "json", *ids]
        return ["/bin/sh", "-c", _SELECTED, "qselect"]

    def find_command(self, name: str) -> list[str]:
        return ["/bin/sh", "-c", _SELECTED, "qselect", "-x", "-N", name]

    def listed_jobs(self, output: str) -> list[Job]:
        if not output.strip():
            return []
        try:
            jobs = json.loads(output, strict=False).get("Jobs", {})
            return [_job(name, attributes) for name, attributes in jobs.items()]
        except (TypeError, AttributeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"qstat listed no jobs: {output[:200]!r}") from error

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["qdel", *ids]

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """The hosts are in a file that the environment names."""
        if not (job := environment.get("PBS_JOBID")):
            return None
        hosts = _hosts_in(environment.get("PBS_NODEFILE", ""))
        return Allocation(
            scheduler=self.name,
            job=job,
            num_nodes=len(hosts) or read_count(environment, "PBS_NUM_NODES") or 1,
            hosts=hosts,
            cores=read_count(environment, "NCPUS") if len(hosts) < 2 else None,
        )


def _per_node(procs: str, nodes: str) -> str:
    """How many processes each node gets, where both numbers are known."""
    both = procs.isdecimal() and nodes.isdecimal() and int(nodes) > 0
    return f"--ppn {math.ceil(int(procs) / int(nodes))}" if both else ""


def _directives(request: JobRequest) -> Iterator[str]:
    """The directives. None excludes hosts or asks for a signal before the end, because PBS can do neither."""
    yield f"-N {request.name}"
    yield f"-l {_chunks(request)}"
    yield "-l place=scatter:excl" if request.is_exclusive else "-l place=scatter"
    if request.walltime_s is not None:
        yield f"-l walltime={as_clock(request.walltime_s)}"
    for flag, value in (
        ("-A", request.bank),
        ("-q", request.reservation or request.queue),  # a reservation is a queue here
        ("-o", request.output),
        ("-e", "" if request.error == request.output else request.error),
    ):
        if value:
            yield f"{flag} {shlex.quote(value)}"
    if request.output and request.error in ("", request.output):
        yield "-j oe"
    yield "-r y" if request.may_requeue else "-r n"


def _chunks(request: JobRequest) -> str:
    """One chunk per node."""
    procs = math.ceil((request.procs or request.nodes) / request.nodes)
    cores = [f"ncpus={request.cores_per_task * procs}"] if request.cores_per_task else []
    gpus = [f"ngpus={request.gpus}"] if request.gpus else []
    return ":".join([f"select={request.nodes}", *cores, f"mpiprocs={procs}", *gpus])


def _hosts_in(path: str) -> tuple[str, ...]:
    try:
        return tuple(dict.fromkeys(Path(path).read_text().split())) if path else ()
    except (OSError, UnicodeDecodeError):
        return ()


def _job(name: str, attributes: Mapping[str, Any]) -> Job:
    if not _ID.fullmatch(name):
        raise ValueError(f"qstat listed no job: {name[:200]!r}")
    code = attributes.get("Exit_status")
    code = code if isinstance(code, int) else None
    stated = attributes["job_state"]
    state = _STATES.get(stated, JobState.UNKNOWN)
    if stated in _OVER:
        state = _ended(code, attributes.get("substate"))
    asked_for = attributes.get("Resource_List", {})
    started = epoch_seconds(attributes.get("stime", ""), _TIME)
    walltime = asked_for.get("walltime")
    nodes = asked_for.get("nodect")
    return Job(
        id=name,
        name=str(attributes.get("Job_Name", "")),
        state=state,
        num_nodes=nodes if isinstance(nodes, int) else None,
        hosts=tuple(
            dict.fromkeys(
                part.partition("/")[0] for part in str(attributes.get("exec_host", "")).split("+") if part
            )
        ),
        submitted=epoch_seconds(attributes.get("ctime", ""), _TIME),
        started=started,
        ends=started + (walltime_seconds(walltime) or 0) if started is not None and walltime else None,
        exit_code=code if state in (JobState.OK, JobState.FAILED) else None,
        reason=str(attributes.get("comment", "")),
    )


def _ended(code: int | None, substate: Any) -> JobState:
    """How a finished job ended."""
    if code == 0:
        return JobState.OK
    if code in _BY_WALLTIME:
        return JobState.TIMEOUT
    if code in _LOST:
        return JobState.LOST
    if substate == _TERMINATED or code is None:
        return JobState.CANCELLED
    return JobState.FAILED
