"""No scheduler: programs start on this machine, and there are no jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from merlin.batch.contract import Allocation, BatchScheduler, Job, JobRequest, LaunchRequest, Scalar
from merlin.batch.shell_words import joined_words, number_word, one_line
from merlin.errors import UsageError


class Local(BatchScheduler):
    name = "local"
    title = "this machine"
    programs = ()
    prefix = ""

    def __init__(self, launcher: str = "mpirun") -> None:
        self.launcher = launcher  # with necessary options, e.g. "mpirun --oversubscribe"; "": none works

    def launch_line(self, request: LaunchRequest) -> str:
        """The launcher's words. A single process needs none; if no launcher works, programs start as one process."""
        before = one_line(request.launch_pre, "launch_pre")
        procs = number_word(request.procs, "procs")
        if procs == "1" or not self.launcher:
            return before
        return joined_words(
            before, f"{self.launcher} -np {procs}", one_line(request.launch_args, "launch_args")
        )

    def workers_command(
        self, num_nodes: int | None, batch: Mapping[str, Scalar], hosts: Sequence[str] = ()
    ) -> list[str]:
        return []

    def directives(self, request: JobRequest) -> list[str]:
        return []

    def submit_command(self, script: str) -> list[str]:
        _no_jobs()

    def submitted_id(self, output: str) -> str:
        _no_jobs()

    def list_command(self, ids: Sequence[str]) -> list[str]:
        _no_jobs()

    def listed_jobs(self, output: str) -> list[Job]:
        _no_jobs()

    def cancel_command(self, ids: Sequence[str]) -> list[str]:
        _no_jobs()

    def allocation(self, environment: Mapping[str, str]) -> Allocation | None:
        return None


def _no_jobs() -> NoReturn:
    raise UsageError("there are no batch jobs with batch.type local; set it to slurm, flux, lsf or pbs")
