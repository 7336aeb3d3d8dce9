"""Which conditions are not met: facts of a study go in, and what to do comes out."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from small_plans import same, step
from study_on_disk import make_workspace, write_study

from merlin import __version__
from merlin.batch.contract import JobState
from merlin.execution.distributed.registry import OpenWork, RunningChunk, WorkerInfo
from merlin.execution.job_folder import StepJob
from merlin.ledger.records import ChunkRecord, EventRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.fit import Need, lacking
from merlin.plan.tasks import Chunk, Outcome
from merlin.status.activity import Holder
from merlin.status.run_events import EXECUTOR
from merlin.views.explain import explain_study, obstacles_of, of_study
from merlin.views.live import live_study
from merlin.views.obstacle import Kind, Obstacle
from merlin.views.obstacles import obstacles
from merlin.views.study_facts import Disk, Handed, OnServers, StudyFacts, Waiting, facts_of
from merlin.views.worker_story import worker_story
from merlin.workspace.directory import Workspace

NOW = 10_000.0
WORKER = WorkerInfo(
    name="celery@simw.n1",
    host="n1",
    pid=7,
    queues=["hot", "cold"],
    concurrency=1,
    started=0.0,
    version=__version__,
)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """`sim` on the queue hot, and `post` after it; four samples, of which 0 is ok."""
    made = make_workspace(tmp_path, step("sim", 4, queue="hot"), step("post", 4, same("sim"), queue="cold"))
    with LedgerWriter(made.ledger_dir, "w0", session="r1", study_id="s1") as ledger:
        ledger.append(
            EventRecord(kind="run_started", data={"workers": 1, "pid": 3, "host": "n1"}, time=1.0),
            ChunkRecord(
                instance="sim",
                lo=0,
                hi=1,
                started=2.0,
                outcomes=np.zeros(1, np.uint8),
                seconds=np.ones(1, np.float32),
            ),
        )
    return made


def end_well(workspace: Workspace) -> None:
    """From now on every task is ok."""
    with LedgerWriter(workspace.ledger_dir, "w0", session="r3", study_id="s1") as ledger:
        for id in ("sim", "post"):
            ledger.append(
                ChunkRecord(
                    instance=id, lo=0, hi=4, started=2.0,
                    outcomes=np.full(4, Outcome.OK, np.uint8), seconds=np.ones(4, np.float32),
                )
            )  # fmt: skip


def on_servers(**more: object) -> OnServers:
    workers = more.pop("workers", (WORKER,))
    served = {worker.name: frozenset(worker.queues) for worker in workers}
    fields = {"is_held": True, "owner": "x", "plan": "", "handed": (), "work": (), "memory_full": ""}
    return OnServers(**{**fields, "workers": workers, "served": served, **more})


def published(workspace: Workspace, **more: object) -> StudyFacts:
    """Facts of a study that workers have."""
    return replace(facts_of(workspace, now=NOW), is_published=True, servers=on_servers(**more))


def troubles(facts: StudyFacts) -> list[Obstacle]:
    return [each for each in obstacles(facts) if not each.is_normal]


def the(kind: Kind, facts: StudyFacts) -> Obstacle:
    (found,) = [each for each in obstacles(facts) if each.kind is kind]
    return found


# ------------------------------------------------------------------ on this machine


def test_a_run_that_was_killed_is_said_to_be_so_and_how_it_goes_on(workspace: Workspace) -> None:
    killed, *rest = explain_study(workspace).obstacles
    assert "was killed" in killed.what
    assert killed.remedy == f"merlin restart {workspace.path}"
    assert [(each.kind, each.step) for each in rest] == [(Kind.DEPENDENCY, "post")]
    assert "post waits for sim (3 tasks open), with 3 tasks" in rest[0].what
    assert obstacles_of(workspace) == (killed,)


def test_among_several_studies_each_obstacle_has_the_name_of_its_own(tmp_path: Path) -> None:
    one, two = (write_study(tmp_path / name, step("sim", 4)) for name in ("study_one", "study_two"))
    for study in (one, two):
        (found,) = of_study(facts_of(study))
        assert found.what == f"{study.path.name}: nothing of it was ever started"


@pytest.mark.parametrize(
    ("reason", "kind", "words"),
    [
        ("canary: the first 10 tasks of step 'sim' all failed", Kind.LIMIT, "merlin failures"),
        ("max_failures: 6 of 100 tasks of step 'sim' failed", Kind.LIMIT, "--max-failures N"),
        ("interrupted", Kind.STATE, "merlin restart"),
        ("cannot write x: No space left on device", Kind.DISK, "merlin restart"),
    ],
)
def test_a_run_that_stopped_says_why(workspace: Workspace, reason: str, kind: Kind, words: str) -> None:
    facts = replace(facts_of(workspace), last_run=EventRecord(kind="run_stopped", data={"reason": reason}))
    first = troubles(facts)[0]
    assert first.kind is kind
    assert reason in first.what
    assert words in first.remedy


def test_a_live_run_has_no_trouble_and_says_that_more_is_ready_than_it_has_workers(
    workspace: Workspace,
) -> None:
    facts = replace(facts_of(workspace), holder=Holder(pid=os.getpid(), host="n1", is_here=True))
    assert troubles(facts) == []
    assert "for 1 worker process on this machine" in the(Kind.BUSY, facts).what
    asleep = replace(facts, holder=Holder(pid=5, host="n1", is_here=True, is_suspended=True))
    assert [each.remedy for each in troubles(asleep)] == ["kill -CONT 5"]


def test_tasks_that_asked_to_run_again_say_when_they_may(workspace: Workspace) -> None:
    waiting = (
        Waiting(instance="sim", tasks=((1, 3),), until=NOW + 60),
        Waiting(instance="sim", tasks=((3, 4),), until=NOW + 90),
    )
    facts = replace(facts_of(workspace, now=NOW), waiting=waiting)
    assert "3 tasks of sim asked to run again" in the(Kind.RETRY, facts).what
    assert "in 1 min 00 s, the last of them in 1 min 30 s" in the(Kind.RETRY, facts).what


def test_a_full_disk_and_one_without_room_for_files_are_named(workspace: Workspace) -> None:
    facts = replace(facts_of(workspace), disk=Disk(free_bytes=5_000_000, free_files=3))
    assert [each.what.rpartition(" has ")[2] for each in obstacles(facts) if each.kind is Kind.DISK] == [
        "5.0 MB left",
        "room for 3 more files only",
    ]
    facts = replace(facts, disk=Disk(free_bytes=0, free_files=None, refusal="Disk quota exceeded"))
    assert the(Kind.DISK, facts).what.endswith(": Disk quota exceeded")


def test_damage_of_the_ledger_is_named_with_what_to_do(workspace: Workspace) -> None:
    (segment,) = workspace.ledger_dir.iterdir()
    content = bytearray(segment.read_bytes())
    content[content.index(b"run_started")] ^= 0xFF
    segment.write_bytes(content)
    found = [each for each in obstacles(facts_of(workspace)) if each.kind is Kind.LEDGER]
    assert found and str(segment) in found[0].what and "merlin restart" in found[0].remedy
    end_well(workspace)
    mended = explain_study(workspace)
    assert [(each.kind, each.remedy, each.is_normal) for each in mended.obstacles] == [
        (Kind.LEDGER, "", True)
    ]
    assert mended.exit_code == 0


def test_whether_there_is_room_is_tried_with_a_file_that_does_not_stay(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(workspace.info.iterdir())
    assert not [each for each in explain_study(workspace).obstacles if each.kind is Kind.DISK]
    assert sorted(workspace.info.iterdir()) == before

    def full(fd: int) -> None:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr("merlin.views.study_facts.os.fsync", full)
    assert [each.kind for each in obstacles_of(workspace)] == [Kind.STATE], "nothing is written for a page"
    assert explain_study(workspace).obstacles[0].kind is Kind.DISK
    assert sorted(workspace.info.iterdir()) == before


def test_batch_jobs_of_a_step_wait_for_the_schedulers_reason_and_for_their_limit(
    workspace: Workspace,
) -> None:
    resources = {"batch.type": "slurm", "batch.submit": True, "batch.max_jobs": 1}
    sim, post = workspace.plan.instances
    plan = replace(workspace.plan, instances=(replace(sim, resources=resources), post))
    job = StepJob(
        chunk=Chunk(instance="sim", lo=1, hi=2), session="r1", scheduler="slurm", name="j", id="9",
        state=JobState.PENDING, reason="Priority",
    )  # fmt: skip
    facts = replace(facts_of(workspace), workspace=Workspace(workspace.path, plan), step_jobs=(job,))
    assert "1 batch job of sim pending: Priority" in the(Kind.JOB, facts).what
    assert "1 batch job at a time is all there may be" in the(Kind.CAP, facts).what
    held = replace(facts, holder=Holder(pid=os.getpid(), host="n1", is_here=True))
    (refused,) = troubles(replace(held, step_jobs=(replace(job, id="", refused="no such partition"),)))
    assert (refused.kind, refused.step) == (Kind.JOB, "sim")
    assert refused.what == "slurm refuses the jobs of sim: no such partition"
    assert refused.remedy.endswith(f"merlin run SPEC --update {workspace.path}")


# ------------------------------------------------------------------ on workers


def test_with_workers_on_its_queue_only_what_passes_by_itself_is_left(workspace: Workspace) -> None:
    assert troubles(published(workspace)) == []


def test_a_queue_without_workers_is_named_with_the_command_that_brings_some(workspace: Workspace) -> None:
    found = the(Kind.WORKERS, published(workspace, workers=(replace(WORKER, queues=["cold"]),)))
    assert "tasks of sim are ready, and no worker serves its queue hot" in found.what
    assert found.remedy == f"merlin run-workers {workspace.path}"
    assert found.step == "sim"
    first, _ = troubles(published(workspace, workers=(replace(WORKER, is_stopping=True),)))
    assert "1 worker of its queue hot will end" in first.what


def test_servers_that_cannot_be_asked_or_have_lost_the_study_are_the_obstacle(workspace: Workspace) -> None:
    silent = replace(
        published(workspace), servers=None, trouble=("Redis at h:1 did not answer", "merlin doctor")
    )
    assert [(each.kind, each.remedy) for each in troubles(silent)] == [(Kind.SERVER, "merlin doctor")]
    gone = published(workspace, is_held=False)
    assert "does not hold" in the(Kind.SERVER, gone).what
    assert "full" in the(Kind.SERVER, published(workspace, memory_full="1 of 1 MB")).what


def test_a_lease_says_who_holds_it_since_when_if_the_holder_is_silent(workspace: Workspace) -> None:
    chunk = Chunk(instance="sim", lo=1, hi=3)
    handed = (Handed(chunk=chunk, since=NOW - 300, worker=WORKER.name, left_s=12.0),)
    assert troubles(published(workspace, handed=handed)) == []
    found = the(Kind.LEASE, published(workspace, handed=handed, workers=(replace(WORKER, age_s=30.0),)))
    assert "simw.n1 on n1 has held tasks 1 to 2 of sim for 5 min 00 s" in found.what
    assert "not heard of for 30 s" in found.what
    assert "its lease ends in 12 s" in found.remedy
    assert "merlin stop-workers --workers simw.n1 --now" in found.remedy


def test_offers_that_nobody_takes_are_told_apart_from_busy_workers(workspace: Workspace) -> None:
    chunk = Chunk(instance="sim", lo=1, hi=3)
    handed = (Handed(chunk=chunk, since=NOW - 60, worker="", left_s=0.0),)
    assert "merlin restart" in the(Kind.MESSAGE, published(workspace, handed=handed)).remedy
    running = RunningChunk(study="s1", instance="sim", lo=0, hi=1, since=1.0)
    busy = published(workspace, handed=handed, workers=(replace(WORKER, running=[running]),))
    found = the(Kind.BUSY, busy)
    assert "every worker of queue hot (1) is busy" in found.what
    assert f"on another machine: merlin run-workers {workspace.path};" in found.remedy
    assert "--worker-args '--concurrency N'" in found.remedy
    assert troubles(busy) == []


def test_what_still_runs_of_a_study_that_was_stopped_on_workers_is_told(workspace: Workspace) -> None:
    stopped = EventRecord(kind="run_stopped", data={"reason": "purged"})
    for left_s, num in ((12.0, 1), (-1.0, 0)):  # a lease that has run out keeps nobody from a restart
        handed = (Handed(chunk=Chunk(instance="sim", lo=1, hi=3), since=NOW, worker="w", left_s=left_s),)
        facts = replace(published(workspace, handed=handed), is_published=False, last_run=stopped)
        found = the(Kind.STATE, facts)
        assert (facts.num_running, "1 chunk of before still runs" in found.what) == (num, bool(num))
        assert (f"merlin cancel {workspace.path}; resume with:" in found.remedy) == bool(num)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("step sim needs 02:00:00; the workers have at most 00:10:00 left", Kind.WALLTIME),
        (lacking("sim", Need(gpus=2.0), "hot"), Kind.SIZE),
    ],
)
def test_what_the_owner_says_of_time_and_devices_is_passed_on(
    workspace: Workspace, reason: str, kind: Kind
) -> None:
    work = (OpenWork(queue="hot", num_at_once=1, waiting=[reason]),)
    found = the(kind, published(workspace, work=work))
    assert (found.what, found.step) == (reason, "sim")


def test_each_bad_node_is_named_once_with_the_step_the_reason_and_what_to_do(workspace: Workspace) -> None:
    facts = replace(published(workspace), bad_nodes={"n2": "sim", "n1": "post"})
    first, second = [each for each in obstacles(facts) if each.kind is Kind.NODE]
    assert "node n1" in first.what
    assert "'post'" in first.what
    assert "node n2" in second.what
    assert "elsewhere" in second.what
    assert f"merlin failures {workspace.path}" in second.remedy
    assert f"merlin restart {workspace.path}" in second.remedy


def test_another_plan_and_another_version_of_merlin_are_named(workspace: Workspace) -> None:
    assert "altered" in the(Kind.PLAN, published(workspace, plan="other")).what
    old = the(Kind.VERSION, published(workspace, workers=(replace(WORKER, version="0.1"),)))
    assert "simw.n1 runs Merlin 0.1" in old.what


def test_nothing_is_in_the_way_of_a_study_that_ended_well(workspace: Workspace) -> None:
    end_well(workspace)
    found = explain_study(workspace)
    assert (found.obstacles, found.exit_code, found.is_ended) == ((), 0, True)
    worker = worker_story(found.members, "w0")
    assert (worker.is_alive, worker.exit_code) == (False, 0)


@pytest.mark.parametrize("asks", ["status", "explain"])
def test_a_study_that_ends_after_its_ledger_was_read_and_before_redis_was_asked_has_not_stopped(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, asks: str
) -> None:
    with LedgerWriter(workspace.ledger_dir, "w1", session="r2", study_id="s1") as ledger:
        ledger.append(EventRecord(kind="run_started", data={"executor": EXECUTOR}, time=3.0))

    class Late:
        """Servers that answer when the study has ended."""

        def serving(self, *_: object) -> None:
            end_well(workspace)

    def ask(_: Workspace) -> tuple[OnServers, tuple[str, str]]:
        end_well(workspace)
        return on_servers(is_held=False), ("", "")

    if asks == "status":
        assert live_study(workspace, Late).snapshot.state == "finished"
    else:
        monkeypatch.setattr("merlin.views.study_facts._ask_servers", ask)
        found = explain_study(workspace)
        assert (found.obstacles, found.exit_code) == ((), 0)
