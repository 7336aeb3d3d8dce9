"""Prints what keeps the workers of a spec or workspace from working, or from being there."""

from __future__ import annotations

from pathlib import Path

from merlin.base.records import to_plain
from merlin.base.text import count
from merlin.batch.job_records import JobRecords
from merlin.batch.jobs import SchedulerClient
from merlin.batch.registry import installed, scheduler_of
from merlin.batch.script import new_job_name
from merlin.cli.output import print_json
from merlin.execution.distributed.launch import queues_of
from merlin.execution.distributed.worker_jobs import PREFIX, jobs_folder
from merlin.views.explain import explain
from merlin.views.job_obstacles import Asked
from merlin.views.workers import load_workers


def show_explanation(
    spec_or_workspace: Path, variables: dict[str, str], scheduler: str, as_json: bool
) -> int:
    """Print what runs, and each condition that keeps more from running."""
    document, by_step = load_workers(spec_or_workspace, variables)
    records = JobRecords(jobs_folder(spec_or_workspace)).all()
    if not spec_or_workspace.is_dir():  # the specs of a directory share its folder of jobs
        ours = new_job_name(PREFIX, document.description.name).rpartition("-")[0]
        records = [record for record in records if record.name.rpartition("-")[0] == ours]
    name = scheduler or (records[-1].scheduler if records else document.batch.type)
    is_asked = bool(scheduler_of(name).programs) and name in installed()
    asked = Asked(
        path=spec_or_workspace,
        queues=queues_of(by_step),
        clients=[SchedulerClient(scheduler_of(name))] if is_asked else [],
        records={spec_or_workspace: records},
    )
    found = explain(asked)
    if as_json:
        print_json({**to_plain(found), "exit_code": found.exit_code})
        return found.exit_code
    if found.num_chunks:
        print(f"{count(found.num_chunks, 'chunk')} run on {count(found.num_workers, 'worker')}")
    else:
        print(f"nothing runs; {count(found.num_workers, 'worker')} alive")
    for obstacle in found.obstacles:
        print(f"- {obstacle.what}")
        if obstacle.remedy:
            print(f"    {obstacle.remedy}")
    return found.exit_code
