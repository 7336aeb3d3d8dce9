"""Batch jobs of steps whose study runs on workers: its owner submits them, and whoever owns it next goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster
from small_plans import same, step
from small_slurm import SmallSlurm
from waiting import wait_until

from merlin.errors import SchedulerUnreachableError
from merlin.execution.distributed import control, ownership
from merlin.execution.distributed.control import cancel_step_jobs
from merlin.execution.distributed.ownership import Ownership
from merlin.execution.distributed.registry import WorkerInfo
from merlin.execution.job_folder import all_jobs

JOBS = {"batch.submit": True, "batch.type": "slurm", "batch.tasks_per_job": 4}


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallSlurm]:
    cluster = SmallSlurm(tmp_path / "slurm").install(monkeypatch)
    yield cluster
    cluster.close()


def own(cluster: Cluster) -> Ownership:
    """Own the study by force, as if whoever owned it had been killed."""
    tools = cluster.tools()
    mailbox = tools.backend.mailbox(cluster.study.id)
    return Ownership(cluster.study, cluster.session, mailbox, mailbox.own(cluster.session, force=True), tools)


def work_until_over(cluster: Cluster, owner: Ownership) -> None:
    def is_over() -> bool:
        cluster.server.advance(0.5)
        owner.work(0.0)
        return owner.is_over

    wait_until(is_over, cluster.show)
    owner.close()


def test_the_owner_submits_and_the_next_one_goes_on_with_what_runs(tmp_path: Path, slurm: SmallSlurm) -> None:
    log, gate = tmp_path / "log", tmp_path / "gate"
    command = f"echo $(MERLIN_SAMPLE_ID) >> {log}; until test -e {gate}; do sleep 0.05; done"
    cluster = Cluster(tmp_path, step("sim", 8, command=command, resources=JOBS)).publish()
    first = own(cluster)

    def both_run() -> bool:
        cluster.server.advance(0.5)
        first.work(0.0)
        return log.exists() and len(log.read_text().split()) == 2

    wait_until(both_run, cluster.show)
    assert cluster.messages() == []  # nothing for workers to take
    next_one = own(cluster)  # the first one was killed
    gate.touch()
    work_until_over(cluster, next_one)
    first.close()
    assert cluster.outcomes() == {"OK": 8}
    assert sorted(log.read_text().split(), key=int) == [str(task) for task in range(8)]
    assert slurm.calls("sbatch") == 2


def test_workers_run_the_rest_of_the_study(tmp_path: Path, slurm: SmallSlurm) -> None:
    cluster = Cluster(
        tmp_path, step("sim", 4, command="true", resources=JOBS), step("post", 4, same("sim"))
    ).publish()
    cluster.worker().start()
    cluster.wait_until_over(pass_s=0.2)
    assert (cluster.outcomes("sim"), cluster.outcomes("post")) == ({"OK": 4}, {"OK": 4})
    assert {instance for _, instance, _, _ in cluster.ran} == {"post"}
    cluster.close()


def test_a_cancelled_study_leaves_no_job(tmp_path: Path, slurm: SmallSlurm) -> None:
    cluster = Cluster(tmp_path, step("sim", 4, command="sleep 1000", resources=JOBS)).publish()
    owner = own(cluster)
    wait_until(lambda: owner.work(0.0) or any(job.id for job in all_jobs(cluster.workspace)), cluster.show)
    assert cancel_step_jobs(cluster.workspace) == 1
    assert [slurm.state(job) for job in slurm.jobs()] == ["CANCELLED"]
    assert all_jobs(cluster.workspace) == []
    owner.close()


def test_a_cancel_that_the_scheduler_does_not_answer_can_be_repeated(
    tmp_path: Path, slurm: SmallSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path, step("sim", 4, command="sleep 1000", resources=JOBS)).publish()
    owner = own(cluster)
    wait_until(lambda: owner.work(0.0) or any(job.id for job in all_jobs(cluster.workspace)), cluster.show)
    registry = cluster.tools().backend.registry
    about = {
        "name": "w",
        "host": "h",
        "pid": 1,
        "queues": [],
        "concurrency": 1,
        "started": 0.0,
        "version": "",
    }
    registry.beat(WorkerInfo(**about))  # type: ignore[arg-type]
    with monkeypatch.context() as without:
        without.setenv("PATH", str(tmp_path))
        without.setattr(control, "make_tools", lambda config: cluster.tools())
        with pytest.raises(SchedulerUnreachableError):
            control.cancel(cluster.workspace, cluster.config)
    assert [command.op for command in registry.receive("w")[0]] == ["drop"]
    assert all_jobs(cluster.workspace) == []  # it may commit nothing more
    assert [cancel_step_jobs(cluster.workspace) for _ in range(2)] == [1, 0]
    assert [slurm.state(job) for job in slurm.jobs()] == ["CANCELLED"]
    owner.close()


def test_an_owner_without_the_scheduler_lets_others_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "HAND_ON_S", 0.0)
    monkeypatch.setenv("PATH", str(tmp_path))
    cluster = Cluster(tmp_path, step("sim", 4, resources=JOBS)).publish()
    owner = own(cluster)
    with pytest.raises(ownership.ExecutionError, match="no sbatch on the PATH"):
        owner.work(0.0)
    owner.close()
    assert own(cluster).owner.scheduler.counts()["sim"].ready == 4
