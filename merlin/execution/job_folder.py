"""The files by which a batch job and its submitting side talk: in the workspace, so a job needs no network.

::

    merlin_info/step_jobs/
        <lease>/record.json    by the submitting side: the chunk, the run, and the job's id once it has one
        <lease>/job.sh         the job script; job.out: what it printed
        <lease>/claim.N        by the job: its N-th start. A scheduler may start a job again
        <lease>/void           by the submitting side: nothing more of this job may be committed
        reports/<lease>.json   by the job: what has become of the chunk
        ended/<lease>/         folders of jobs that did not report, for people

A job looks for `void` and for a later claim before each commit. Both are names in one directory, and a directory is
looked up again when it is listed, also on NFS.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from merlin.base.files import end_of, write_text
from merlin.base.records import as_kind, parsed_with_names, to_plain
from merlin.batch.contract import JobState
from merlin.errors import ExecutionError, LeaseLostError
from merlin.execution.shell import TAIL_BYTES
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import Chunk
from merlin.workspace.directory import Workspace

JOBS_DIR = "step_jobs"  # in merlin_info
WORKER_PREFIX = "step-job."  # of the names of jobs in the ledger
_REPORTS, _ENDED = "reports", "ended"
_RECORD, _VOID, _CLAIM = "record.json", "void", "claim."
_LEASE = re.compile(r"[0-9A-Za-z]+\.[0-9]+")
MAX_FILE_BYTES = 16 << 20  # of a record or a report; a larger one is damaged


class StepJob(Struct, frozen=True, kw_only=True):
    """A chunk that is, or is about to be, a batch job."""

    chunk: Chunk
    session: str  # the run of the study that it was submitted in
    scheduler: str
    name: str  # of the job; unique
    id: str = ""  # "" until the scheduler has accepted it
    walltime: str = ""  # as the spec says it
    walltime_s: float | None = None
    state: JobState = JobState.PENDING
    reason: str = ""  # why it waits, in the scheduler's words
    refused: str = ""  # why the scheduler did not take it; it is no job then
    submitted: float = 0.0  # epoch seconds

    @property
    def lease(self) -> str:
        return self.chunk.lease


class JobFolder:
    """The files of one job."""

    def __init__(self, workspace: Workspace, lease: str) -> None:
        """Raises ExecutionError for a name that no lease has."""
        if not _LEASE.fullmatch(lease):
            raise ExecutionError(f"{lease!r} is no name of a lease")
        self._all = workspace.info / JOBS_DIR
        self.lease = lease
        self.path = self._all / lease
        self.script, self.output = self.path / "job.sh", self.path / "job.out"
        self._report = self._all / _REPORTS / f"{lease}.json"

    # ------------------------------------------------------------------ both

    def read(self) -> StepJob:
        """Raises ExecutionError if there is no record, or a damaged one."""
        path = self.path / _RECORD
        try:
            job = as_kind(parsed_with_names(_content(path)), StepJob)
        except (OSError, ValueError) as error:
            raise ExecutionError(f"cannot read {path}: {error}") from error
        if job.lease != self.lease:
            raise ExecutionError(f"{path} is the record of another job")
        return job

    def num_claims(self) -> int:
        """How often the job has started; 0 also when its folder is gone."""
        return max(_claims(_names(self.path)), default=0)

    # ---------------------------------------------------------- submitting side

    def write(self, job: StepJob, script: str | None = None) -> None:
        """Raises ExecutionError if it cannot be written."""
        try:
            if script is not None:
                (self._all / _REPORTS).mkdir(parents=True, exist_ok=True)
                write_text(self.script, script, durable_name=False)
            write_text(self.path / _RECORD, json.dumps(to_plain(job)))
        except OSError as error:
            raise ExecutionError(f"cannot write to {self.path}: {error.strerror}") from error

    def void(self) -> None:
        """Forbid the job to commit anything from now on, and to start if it has not started."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / _VOID).touch()
        except OSError as error:
            raise ExecutionError(f"cannot write to {self.path}: {error.strerror}") from error

    def forget(self) -> None:
        """Remove the record of a job that was cancelled; the other files are left to whoever has begun to use them."""
        with suppress(OSError):
            (self.path / _RECORD).unlink(missing_ok=True)

    @property
    def is_void(self) -> bool:
        return _VOID in _names(self.path)

    def report(self) -> ChunkReport | None:
        """The job's own report on its chunk; None as long as there is none. Raises ExecutionError."""
        try:
            return as_kind(parsed_with_names(_content(self._report)), ChunkReport)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ExecutionError(f"cannot read {self._report}: {error}") from error

    def output_tail(self) -> str:
        """The end of what the job has printed."""
        return end_of(self.output, TAIL_BYTES).strip()

    def remove(self, *, keep: bool) -> None:
        """Remove the files of a job whose chunk is settled; with `keep`, move them to `ended`, for people."""
        self.forget()  # so that nobody adopts the rest
        with suppress(OSError):
            self._report.unlink(missing_ok=True)
        if keep:
            with suppress(OSError):
                (self._all / _ENDED).mkdir(exist_ok=True)
                self.path.rename(self._all / _ENDED / self.lease)
        else:
            shutil.rmtree(self.path, ignore_errors=True)

    # ------------------------------------------------------------------ the job

    def claim(self) -> int:
        """Note a start of the job; returns its number. Raises LeaseLostError if it may not start."""
        while True:
            names = _names(self.path)
            if _VOID in names or _RECORD not in names:
                raise LeaseLostError("the chunk was given to somebody else")
            number = max(_claims(names), default=0) + 1
            try:
                (self.path / f"{_CLAIM}{number}").touch(mode=0o644, exist_ok=False)
            except FileExistsError:
                continue
            except OSError as error:
                raise ExecutionError(f"cannot write to {self.path}: {error.strerror}") from error
            return number

    def may_commit(self, claim: int) -> bool:
        """Return whether the job still has its chunk, and no later start of it has."""
        names = _names(self.path)
        return _VOID not in names and max(_claims(names), default=0) == claim

    def write_report(self, report: ChunkReport) -> None:
        """Raises ExecutionError if it cannot be written."""
        try:
            write_text(self._report, json.dumps(to_plain(report)))
        except OSError as error:
            raise ExecutionError(f"cannot write {self._report}: {error.strerror}") from error


def all_jobs(workspace: Workspace, *, given_up: bool = False) -> list[StepJob]:
    """The jobs of a study that are not settled, without those whose records are damaged.

    With `given_up`, also those that may commit nothing any more, but may still wait or run.
    """
    found = []
    for folder in _folders(workspace):
        with suppress(ExecutionError):
            if given_up or not folder.is_void:
                found.append(folder.read())
    return found


def put_away_unusable(workspace: Workspace) -> None:
    """Void and put away the folders of jobs that somebody else gave up, or whose records are damaged.

    Only the owner of the study calls this.
    """
    for folder in _folders(workspace):
        try:
            is_usable = not folder.is_void and bool(folder.read())
        except ExecutionError:
            is_usable = False
        if not is_usable:
            folder.void()
            folder.remove(keep=True)


def _folders(workspace: Workspace) -> list[JobFolder]:
    names = sorted(_names(workspace.info / JOBS_DIR))
    return [JobFolder(workspace, name) for name in names if _LEASE.fullmatch(name)]


def reported(workspace: Workspace) -> set[str]:
    """The leases of jobs that have reported."""
    names = _names(workspace.info / JOBS_DIR / _REPORTS)
    return {name.removesuffix(".json") for name in names if name.endswith(".json")}


def _claims(names: set[str]) -> list[int]:
    numbers = (name.removeprefix(_CLAIM) for name in names if name.startswith(_CLAIM))
    return [int(number) for number in numbers if number.isdecimal()]


def _names(path: Path) -> set[str]:
    try:
        return {entry.name for entry in path.iterdir()}
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError as error:
        raise ExecutionError(f"cannot read {path}: {error.strerror}") from error


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size > MAX_FILE_BYTES:
            raise ValueError("it is too large")
        return file.read()
