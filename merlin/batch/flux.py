"""Flux: ``flux run`` inside an instance, ``flux batch`` for jobs, ``flux exec`` for workers. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence

from merlin.batch.contract import Allocation, BatchScheduler, Job, JobRequest, JobState, LaunchRequest, Scalar
from merlin.batch.environment import read_count
from merlin.batch.hostlist import known_hosts
from merlin.batch.shell_words import is_on, joined_words, number_word, one_line, quoted_word, walltime_word
from merlin.batch.walltime import as_seconds

# Between the fields of a job, and before each job: control characters, which no name of a job should hold.
_FIELD, _JOB = "\x1f", "\x1e"
_FIELDS = (
    "id.f58", "status_abbrev", "nnodes", "nodelist", "t_submit", "t_run", "expiration", "returncode",
    "exception.type", "exception.note", "name",
)  # fmt: skip
_FORMAT = _JOB + _FIELD.join(f"{{{name}}}" for name in _FIELDS)
_ID = re.compile(r"[ƒf][1-9A-HJ-NP-Za-km-z]+")

_URGENCIES = {"held": 0, "minimal": 1, "low": 9, "medium": 16, "high": 24, "expedited": 31}
_STATES = {
    "D": JobState.PENDING,
    "P": JobState.PENDING,
    "S": JobState.PENDING,
    "R": JobState.RUNNING,
    "C": JobState.RUNNING,
    "CD": JobState.OK,
    "F": JobState.FAILED,
    "CA": JobState.CANCELLED,
    "TO": JobState.TIMEOUT,
}


class Flux(BatchScheduler):
    name = "flux"
    title = "Flux"
    programs = ("flux",)
    prefix = "#flux:"
    script_suffix = ".flux.sh"
    hidden_variables = ("FLUX_JOBS_*",)
    knows_none = r"JobID \S+ unknown"

    def launch_line(self, request: LaunchRequest) -> str:
        step = request.resources
        nodes = f"-N {number_word(request.nodes, 'nodes')}" if request.nodes else ""
        return joined_words(
            one_line(request.launch_pre, "launch_pre"),
            f"{quoted_word(_program(step, 'batch.flux_path'), 'flux_path')} run",
            nodes,
            f"-n {number_word(request.procs, 'procs')}",
            *_launch_flags(step, has_nodes=bool(nodes)),
            one_line(str(step.get("flux", "")), "flux"),
            one_line(request.launch_args, "launch_args"),
        )

    def workers_command(
        self, num_nodes: int | None, batch: Mapping[str, Scalar], hosts: Sequence[str] = ()
    ) -> list[str]:
        # not `flux run`, which would occupy the cores that the workers' tasks need
        flux, own = _program(batch, "flux_path"), str(batch.get("worker_launch") or "")
        start = shlex.split(own)
        if own and "flux" not in own:
            start += [flux, "start", *shlex.split(str(batch.get("flux_start_opts") or ""))]
        if batch.get("flux_exec_workers") is False:
            return start
        if given := batch.get("flux_exec"):
            return [*start, *shlex.split(str(given))]
        return [*start, flux, "exec", *_ranks(None if own else num_nodes)]

    def directives(self, request: JobRequest) -> list[str]:
        return [f"{self.prefix} {line}" for line in _directives(request)]

    def submit_command(self, script: str) -> list[str]:
        return ["flux", "batch", script]

    def submitted_id(self, output: str) -> str:
        words = output.split()
        if not words or not _ID.fullmatch(words[-1]):
            raise ValueError(f"flux batch named no job: {output[-200:]!r}")
        return _ascii(words[-1])

    def list_command(self, ids: Sequence[str]) -> list[str]:
        return ["flux", "jobs", "-n", "-o", _FORMAT, *(ids or ["-a"])]

    def own_job_command(self, environment: Mapping[str, str]) -> list[str]:
        """Ask the enclosing instance if there is one: it knows this instance as its job."""
        if (found := self.allocation(environment)) is None:
            return []
        flux, *words = self.list_command([found.job])
        return [flux, *(["--parent"] if environment.get("FLUX_ENCLOSING_ID") else []), *words]

    def listed_jobs(self, output: str) -> list[Job]:
        before, *records = output.split(_JOB)
        if before.strip():
            raise ValueError(f"flux jobs listed no jobs: {output[:200]!r}")
        return [_job(record) for record in records]

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        return ["flux", "cancel", *ids]

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        """The job that this instance is, if it is one, else the job of this process.

        In an instance, a program that `flux run` has started also has a job of its own; that one does not count.
        """
        outer, inner = environment.get("FLUX_ENCLOSING_ID", ""), environment.get("FLUX_JOB_ID", "")
        if _ID.fullmatch(outer):
            return Allocation(scheduler=self.name, job=_ascii(outer))
        if _ID.fullmatch(inner):
            num_nodes = read_count(environment, "FLUX_JOB_NNODES") or 1
            return Allocation(scheduler=self.name, job=_ascii(inner), num_nodes=num_nodes)
        return None


def _program(settings: Mapping[str, Scalar], key: str) -> str:
    folder = str(settings.get(key) or "").rstrip("/")
    return f"{folder}/flux" if folder else "flux"


def _ranks(num_nodes: int | None) -> list[str]:
    """The words that select the first nodes of an instance; none for all nodes."""
    if not num_nodes:
        return []
    return ["-r", f"0-{num_nodes - 1}" if num_nodes > 1 else "0"]  # Flux does not read "0-0"


def _ascii(job: str) -> str:
    """The id with an ASCII "f" as its first letter; which letter Flux prints depends on the locale."""
    return "f" + job[1:]


def _launch_flags(step: Mapping[str, Scalar], *, has_nodes: bool) -> Iterator[str]:
    if has_nodes and is_on(step.get("exclusive.launcher", False)):
        yield "--exclusive"  # all cores and GPUs: Flux does not want their number as well
    else:
        for flag, keys in (("-c", ("cores per task",)), ("-g", ("gpus per task", "gpus"))):
            if key := next((key for key in keys if step.get(key)), ""):
                yield f"{flag} {number_word(step[key], key)}"
    if step.get("walltime") and (walltime := walltime_word(step["walltime"], as_seconds)):
        yield f"-t {walltime}"


def _directives(request: JobRequest) -> Iterator[str]:
    yield f"--job-name={request.name}"
    yield f"-N {request.nodes}"
    yield from _slots(request)
    if request.walltime_s is not None:
        yield f"-t {as_seconds(request.walltime_s)}"
    for flag, value in (("queue", request.queue), ("bank", request.bank)):
        if value:
            yield f"--{flag}={shlex.quote(value)}"
    if request.excluded_hosts:
        yield f"--requires=-host:{','.join(request.excluded_hosts)}"
    if request.priority:
        yield f"--urgency={_urgency(request.priority)}"
    if request.is_waitable:
        yield "--flags=waitable"
    if request.output:
        yield f"--output={shlex.quote(request.output)}"
    if request.error not in ("", request.output):
        yield f"--error={shlex.quote(request.error)}"


def _urgency(priority: str) -> int:
    """The number of a priority, as Maestro has it. Raises ValueError."""
    if priority.lower() in _URGENCIES:
        return _URGENCIES[priority.lower()]
    try:
        number = float(priority)
    except ValueError:
        number = math.nan
    if not 0 <= number <= 1:
        raise ValueError(
            f"a priority of {priority[:60]!r} is not possible; write {', '.join(_URGENCIES)}, or 0 to 1"
        )
    return math.ceil(number * _URGENCIES["expedited"])


def _slots(request: JobRequest) -> Iterator[str]:
    """The options for the size of a job's slots; without a size it gets whole nodes."""
    if request.is_exclusive:
        yield "--exclusive"
    if request.procs is not None or request.cores_per_task is not None:
        slots = request.procs or request.nodes
        yield f"-n {slots}"
        if request.cores_per_task is not None:
            yield f"-c {request.cores_per_task}"
        if request.gpus:
            yield f"-g {math.ceil(request.gpus * request.nodes / slots)}"


def _job(record: str) -> Job:
    words = record.rstrip("\n").split(_FIELD, len(_FIELDS) - 1)
    if len(words) != len(_FIELDS):
        raise ValueError(f"flux jobs listed no job: {record[:200]!r}")
    field = dict(zip(_FIELDS, words, strict=True))
    state = _STATES.get(field["status_abbrev"], JobState.UNKNOWN)
    if not _ID.fullmatch(field["id.f58"]):
        raise ValueError(f"flux jobs listed no job: {record[:200]!r}")
    if state is JobState.FAILED and field["exception.type"] == "node-failure":
        state = JobState.LOST
    code = _number(field["returncode"]) if state.is_over else None
    return Job(
        id=_ascii(field["id.f58"]),
        name=field["name"],
        state=state,
        num_nodes=round(_number(field["nnodes"]) or 0) or None,
        hosts=known_hosts(field["nodelist"]),
        submitted=_number(field["t_submit"]) or None,
        started=_number(field["t_run"]) or None,
        ends=_number(field["expiration"]) or None,
        exit_code=None if code is None else round(code),
        reason=": ".join(part for part in (field["exception.type"], field["exception.note"]) if part),
    )


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
