"""LSF: ``jsrun`` inside an allocation, ``bsub`` for jobs of whole nodes. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from merlin.batch.contract import Allocation, BatchScheduler, Job, JobRequest, JobState, LaunchRequest, Scalar
from merlin.batch.shell_words import joined_words, number_word, one_line, quoted_word
from merlin.batch.slurm import Slurm
from merlin.batch.walltime import as_hours_and_minutes

_SUBMITTED = re.compile(r"Job <(\d+)> is submitted")
_FIELDS = "jobid stat job_name exit_code exit_reason nexec_host exec_host run_time time_left pend_reason"
# The times of bjobs are relative to now, so the first line is the time. It fails if it knows none of the jobs, and
# says so in its answer.
_LIST = """date +%s; out=$(bjobs "$@"); code=$?; echo "$out"; case $out in *'"RECORDS"'*) ;; *) exit $code ;; esac"""
_LEFT = re.compile(r"(\d+):(\d+) L")  # L: of the limit, not an estimate
_RUN_TIME = re.compile(r"(\d+) second")

_STATES = {
    "PEND": JobState.PENDING,
    "PSUSP": JobState.PENDING,
    "WAIT": JobState.PENDING,
    "PROV": JobState.RUNNING,
    "RUN": JobState.RUNNING,
    "USUSP": JobState.RUNNING,
    "SSUSP": JobState.RUNNING,
    "UNKWN": JobState.RUNNING,  # its host does not answer, for now
    "DONE": JobState.OK,
    "EXIT": JobState.FAILED,
    "ZOMBI": JobState.LOST,
}
_TERMINATIONS = {
    "TERM_RUNLIMIT": JobState.TIMEOUT,
    "TERM_OWNER": JobState.CANCELLED,
    "TERM_FORCE_OWNER": JobState.CANCELLED,
    "TERM_ADMIN": JobState.CANCELLED,
    "TERM_FORCE_ADMIN": JobState.CANCELLED,
    "TERM_PREEMPT": JobState.LOST,
    "TERM_ZOMBIE": JobState.LOST,
}
_BY_SETS = ("tasks per rs", "rs per node", "cpus per rs")


class Lsf(BatchScheduler):
    name = "lsf"
    title = "LSF"
    programs = ("bsub", "bjobs", "bkill", "jsrun")
    prefix = "#BSUB"
    launcher_nests = False
    script_suffix = ".lsf.sh"
    hidden_variables = ("LSB_BJOBS_*", "LSB_SUBK_*", "BSUB_QUIET*")
    knows_none = r"Job <\S+> is not found|No (\w+ )?job found"

    def launch_line(self, request: LaunchRequest) -> str:
        by_sets = any(request.resources.get(key) for key in _BY_SETS)
        return joined_words(
            one_line(request.launch_pre, "launch_pre"),
            "jsrun",
            *(_by_resource_sets(request) if by_sets else _by_processes(request)),
            one_line(str(request.resources.get("lsf", "")), "lsf"),
            one_line(request.launch_args, "launch_args"),
        )

    def workers_command(
        self, num_nodes: int | None, batch: Mapping[str, Scalar], hosts: Sequence[str] = ()
    ) -> list[str]:
        if own := batch.get("worker_launch"):
            return shlex.split(str(own))
        if num_nodes is None:
            return []
        return ["jsrun", "-a", "1", "-c", "ALL_CPUS", "-g", "ALL_GPUS", "--bind=none", "-n", str(num_nodes)]

    def directives(self, request: JobRequest) -> list[str]:
        return [f"{self.prefix} {line}" for line in _directives(request)]

    def submit_command(self, script: str) -> list[str]:
        # bsub reads #BSUB lines on its input alone
        return ["/bin/sh", "-c", 'exec bsub < "$1"', "bsub", script]

    def submitted_id(self, output: str) -> str:
        if match := _SUBMITTED.search(output):
            return match[1]
        raise ValueError(f"bsub named no job: {output[-200:]!r}")

    def list_command(self, ids: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", _LIST, "bjobs", "-json", "-o", _FIELDS, *(ids or ["-a"])]

    def listed_jobs(self, output: str) -> list[Job]:
        first, _, text = output.partition("\n")
        if not first.strip().isdecimal():
            raise ValueError(f"bjobs listed no jobs: {output[:200]!r}")
        if not text.strip() or text.startswith("No "):  # "No job found"
            return []
        try:
            records = json.loads(text, strict=False)["RECORDS"]
            return [_job(record, float(first)) for record in records if "ERROR" not in record]
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"bjobs listed no jobs: {text[:200]!r}") from error

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["bkill", *ids]

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """The first host of several only launches; it is not counted."""
        if not (job := environment.get("LSB_JOBID")):
            return None
        hosts = environment.get("LSB_MCPU_HOSTS", "").split()[::2] or environment.get("LSB_HOSTS", "").split()
        hosts = list(dict.fromkeys(hosts))
        hosts = hosts[1:] or hosts
        return Allocation(scheduler=self.system, job=job, num_nodes=max(1, len(hosts)), hosts=tuple(hosts))


class LsfSrun(Lsf):
    """LSF for jobs, Slurm's ``srun`` for programs, as on machines where a wrapper named srun replaces jsrun."""

    name = "lsf-srun"
    title = "LSF with srun"
    programs = ("bsub", "bjobs", "bkill", "srun")

    @property
    def system(self) -> str:
        return Lsf.name

    def launch_line(self, request: LaunchRequest) -> str:
        return Slurm().launch_line(request)

    def workers_command(
        self, num_nodes: int | None, batch: Mapping[str, Scalar], hosts: Sequence[str] = ()
    ) -> list[str]:
        if own := batch.get("worker_launch"):
            return shlex.split(str(own))
        return [] if num_nodes is None else ["srun", "-N", str(num_nodes), "-n", str(num_nodes)]


def _directives(request: JobRequest) -> Iterator[str]:
    """Whole nodes (``-nnodes``, as Maestro writes it), so neither cores nor processes are named."""
    yield f"-J {request.name}"
    yield f"-nnodes {request.nodes}"
    if request.walltime_s is not None:
        yield f"-W {as_hours_and_minutes(request.walltime_s)}"
    for flag, value in (
        ("-q", request.queue),
        ("-G", request.bank),
        ("-U", request.reservation),
        ("-gpu", f"num={request.gpus}" if request.gpus else ""),
        ("-R", _without(request.excluded_hosts)),
        ("-o", request.output),
        ("-e", "" if request.error == request.output else request.error),
    ):
        if value:
            yield f"{flag} {_quoted(value)}"
    if request.is_exclusive:
        yield "-x"
    yield "-r" if request.may_requeue else "-rn"


def _by_processes(request: LaunchRequest) -> Iterator[str]:
    """The words of upstream Merlin: so many processes on so many resource sets, by default one set per node."""
    step, nodes = request.resources, number_word(request.nodes or "1", "nodes")
    procs = number_word(request.procs, "procs")
    yield f"--np {procs} --nrs {_number(step, 'num resource set') or nodes}"
    yield f"-b {quoted_word(step.get('bind') or 'rs', 'bind')}"
    own = step.get("launch_distribution")
    yield f"-d {quoted_word(own, 'launch_distribution') if own else 'plane:' + _share(procs, nodes)}"
    yield f"-X {number_word(step.get('exit_on_error', 1), 'exit_on_error')}"
    yield from _given(step, ("-c", "cores per task"), ("-g", "gpus per task", "gpus"))
    yield from _bind_gpus(step)


def _by_resource_sets(request: LaunchRequest) -> Iterator[str]:
    """The words of Maestro: the step says what a resource set is."""
    step = request.resources
    yield f"--nrs {_number(step, 'num resource set') or number_word(request.procs, 'procs')}"
    yield f"-b {quoted_word(step.get('bind') or 'rs', 'bind')}"
    yield from _given(step, ("-g", "gpus", "gpus per task"))
    yield from _bind_gpus(step)
    for flag, *keys in (
        ("-a", "tasks per rs"),
        ("-r", "rs per node"),
        ("-c", "cpus per rs", "cores per task"),
    ):
        yield f"{flag} {_number(step, *keys) or '1'}"
    if own := step.get("launch_distribution"):
        yield f"-d {quoted_word(own, 'launch_distribution')}"


def _bind_gpus(step: Mapping[str, Scalar]) -> Iterator[str]:
    if step.get("bind gpus"):
        yield f"-B {quoted_word(step['bind gpus'], 'bind gpus')}"


def _given(step: Mapping[str, Scalar], *flags: tuple[str, ...]) -> Iterator[str]:
    for flag, *keys in flags:
        if number := _number(step, *keys):
            yield f"{flag} {number}"


def _number(step: Mapping[str, Scalar], *keys: str) -> str:
    """The first of these resources that the step sets; "" if it sets none."""
    return next((number_word(step[key], key) for key in keys if step.get(key)), "")


def _share(procs: str, nodes: str) -> str:
    """The processes of each resource set; the shell divides numbers that only it knows."""
    if procs.isdecimal() and nodes.isdecimal():
        return str(max(1, int(procs) // max(1, int(nodes))))
    return f"$(({procs}/{nodes}))"


def _without(hosts: Sequence[str]) -> str:
    return "select[" + " && ".join(f"hname!='{host}'" for host in hosts) + "]" if hosts else ""


def _quoted(text: str) -> str:
    """A word of a header line, in the kind of quotes that it does not contain."""
    return f'"{text}"' if "'" in text and '"' not in text else shlex.quote(text)


def _job(record: Mapping[str, Any], now: float) -> Job:
    text = {key: str(value).strip() for key, value in record.items()}
    stated, ended = text["STAT"], text.get("EXIT_REASON", "")
    if not text["JOBID"].isdecimal():
        raise ValueError(f"bjobs listed no job: {str(record)[:200]!r}")
    state = _STATES.get(stated, JobState.UNKNOWN)
    if state is JobState.FAILED:
        state = _TERMINATIONS.get(ended.partition(":")[0], state)
    left, ran = _LEFT.match(text.get("TIME_LEFT", "")), _RUN_TIME.match(text.get("RUN_TIME", ""))
    nodes, code = text.get("NEXEC_HOST", ""), text.get("EXIT_CODE", "")
    over = state.is_over
    return Job(
        id=text["JOBID"],
        name=text.get("JOB_NAME", ""),
        state=state,
        num_nodes=int(nodes) if nodes.isdecimal() else None,
        hosts=tuple(host.rpartition("*")[2] for host in text.get("EXEC_HOST", "").split(":") if host),
        started=now - float(ran[1]) if ran and state is JobState.RUNNING else None,
        ends=now + 3600 * int(left[1]) + 60 * int(left[2]) if left and not over else None,
        exit_code=0 if state is JobState.OK else int(code) if over and code.isdecimal() else None,
        reason=ended if over else text.get("PEND_REASON", ""),
    )
