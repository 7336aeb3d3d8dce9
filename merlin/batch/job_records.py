"""What we have submitted: one file per job in the workspace, written whole, for every process that asks."""

from __future__ import annotations

import json
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.files import write_text
from merlin.base.records import FileFormat, as_kind, parsed_with_names, to_plain
from merlin.batch.contract import Job, JobRequest
from merlin.batch.jobs import SchedulerClient
from merlin.batch.script import job_script
from merlin.errors import SchedulerRefusedError, WorkspaceError

JOBS_DIR = "jobs"  # in merlin_info
_FORMAT = FileFormat("merlin-job", 1)


class JobRecord(Struct, frozen=True, kw_only=True):
    """The record of a job for workers, written before the job is submitted, so that no job can be forgotten."""

    name: str
    scheduler: str
    created: float  # epoch seconds
    reason: str = ""  # why it was submitted
    num_nodes: int = 1
    walltime_s: float | None = None
    script: str = ""
    output: str = ""
    id: str = ""  # "": it is not known yet whether it was submitted
    refused: str = ""  # why the scheduler did not take it; it is no job then
    cancelled: str = ""  # why we ended it
    seen: Job | None = None  # what the scheduler said about it last
    seen_at: float | None = None

    @property
    def is_open(self) -> bool:
        """True while it may wait or run, as far as the record knows."""
        return not self.refused and (self.seen is None or not self.seen.state.is_over)


class JobRecords:
    """The records of one workspace."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder  # merlin_info/jobs

    def path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def write(self, record: JobRecord) -> None:
        """Write a record, or replace it. Raises WorkspaceError."""
        text = json.dumps({**_FORMAT.head(), **to_plain(record)}, indent=1)
        try:
            write_text(self.path(record.name), text + "\n")
        except OSError as error:
            raise WorkspaceError(f"cannot write {self.path(record.name)}: {error.strerror}") from error

    def read(self, name: str) -> JobRecord:
        """The record of a job. Raises WorkspaceError."""
        return _read(self.path(name))

    def all(self) -> list[JobRecord]:
        """Every record, the oldest first. Raises WorkspaceError for one that cannot be read."""
        records = [_read(path) for path in sorted(self.folder.glob("*.json"))]
        return sorted(records, key=lambda record: (record.created, record.name))

    def submit(
        self, client: SchedulerClient, record: JobRecord, request: JobRequest, body: str, shell: str
    ) -> JobRecord:
        """Write the script and the record, submit the job, and write down its id; returns the new record.

        The request has the record's name. Repeat it with the same record if the scheduler gave no answer: the job is
        submitted once.

        Raises:
            ValueError: the script cannot hold what the request says.
            SchedulerRefusedError: the scheduler does not take the job; the record says so, too.
            SchedulerUnreachableError: no answer.
            WorkspaceError: the disk does not take the record; nothing was submitted, or the record has no id.
        """
        is_again = self.path(record.name).exists()
        script = self.folder / f"{record.name}.sh"
        text = job_script(client.scheduler, request, body, shell=shell)
        try:
            write_text(script, text, mode=0o700)
        except OSError as error:
            raise WorkspaceError(f"cannot write {script}: {error.strerror}") from error
        record = replace(
            record,
            script=str(script),
            output=request.output,
            num_nodes=request.nodes,
            walltime_s=request.walltime_s,
        )
        self.write(record)
        try:
            job = client.submit(record.name, record.script, is_again=is_again)
        except SchedulerRefusedError as error:
            self.write(replace(record, refused=str(error)))
            raise
        record = replace(record, id=job)
        self.write(record)
        return record


def _read(path: Path) -> JobRecord:
    try:
        data = parsed_with_names(path.read_bytes())
        _FORMAT.require(data)
        return as_kind(data, JobRecord)
    except OSError as error:
        raise WorkspaceError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise WorkspaceError(f"{path} is no record of a job: {error}; move it away") from error
