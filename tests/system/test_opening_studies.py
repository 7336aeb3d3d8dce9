"""Studies that are opened, lost, published again and forgotten: a real Redis, a real ledger, no worker."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from servers import RedisServer
from small_plans import same, step
from study_on_disk import make_workspace
from waiting import wait_until

from merlin.config.load import require_config
from merlin.config.model import Config
from merlin.errors import ExecutionError, OwnershipLostError, WorkspaceError
from merlin.execution.distributed import open_study as opening
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.control import cancel, stop
from merlin.execution.distributed.messages import open_chunk, seal_report
from merlin.execution.distributed.open_study import make_tools, open_study, publish_again
from merlin.execution.distributed.ownership import Ownership
from merlin.execution.distributed.redis_backend import RedisBackend, RedisMailbox
from merlin.execution.distributed.registry import RunningChunk, WorkerInfo
from merlin.execution.distributed.study import Studies, Study
from merlin.ledger.records import EventRecord, RangeRecord
from merlin.ledger.replay import replay
from merlin.ledger.session import make_session
from merlin.ledger.writer import LedgerWriter
from merlin.plan.plan_io import plan_digest, write_plan
from merlin.plan.reopen import Again
from merlin.plan.reports import ChunkReport
from merlin.plan.tasks import NO_OUTCOME, Chunk, ChunkResult, Outcome
from merlin.views.published import PublishedStudy
from merlin.workspace.directory import Workspace, open_workspace
from merlin.workspace.holding import lock

FAILED = int(Outcome.FAILED)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Two steps of four tasks, the second after the first, nothing run yet."""
    return make_workspace(tmp_path, step("sim", 4, canary=0), step("post", 4, same("sim")))


@pytest.fixture
def config(tmp_path: Path, any_redis: RedisServer) -> Config:
    return require_config({"MERLIN_BROKER_URL": any_redis.url, "HOME": str(tmp_path)}, cwd=tmp_path)


class Worker:
    """A worker's hands on the servers; it runs nothing."""

    def __init__(self, config: Config, workspace: Workspace) -> None:
        self._config = config
        self.client = make_client(config.backend)
        self.backend = RedisBackend(config, self.client, lease_s=600.0)
        self.registry, self.mailbox = self.backend.registry, self.backend.mailbox("s1")
        self.study = Study(workspace)
        self.tools = make_tools(config)

    def publish_again(self) -> str:
        return publish_again(self.study, self.tools)

    def token(self) -> object:
        """Of the owner."""
        return self.client.hget(self.mailbox._key["owner"], "token")

    def take(self, *, lease_s: float = 600.0) -> Chunk:
        offer = next(offer for offer in self.mailbox.offers() if not offer.worker)
        leases = RedisBackend(self._config, self.client, lease_s=lease_s).leases("s1")
        envelope = leases.take(offer.lease, "w")
        assert envelope is not None
        return open_chunk(envelope, "s1", offer.lease, self._config.key)

    def fail(self, chunk: Chunk) -> None:
        """In the ledger every task of its step, in a letter to the owner those of the chunk."""
        (info,) = self.registry.studies()
        with LedgerWriter(
            self.study.workspace.ledger_dir, "w", session=info.session, study_id="s1"
        ) as ledger:
            ledger.append(
                RangeRecord(
                    instance=chunk.instance, lo=0, hi=4, outcome=Outcome.FAILED, cause="x",
                    attempt=chunk.attempt,
                )
            )  # fmt: skip
        result = ChunkResult(chunk=chunk, runs=((chunk.lo, chunk.hi, FAILED),))
        report = seal_report(ChunkReport(chunk=chunk, worker="w", result=result), "s1", self._config.key)
        assert self.backend.leases("s1").settle(chunk.lease, report)


@pytest.fixture
def worker(config: Config, workspace: Workspace) -> Worker:
    return Worker(config, workspace)


# ----------------------------------------------------------------- publishing again


def test_a_study_that_redis_lost_is_published_again(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    worker.client.flushall()
    assert worker.publish_again() == "published"
    assert worker.mailbox.exists()
    assert [s.study_id for s in worker.registry.studies()] == ["s1"]
    assert worker.publish_again() == "busy"
    assert open_study(workspace, config).num_messages == 1  # it has no owner yet


def test_what_ran_on_lost_records_is_opened_with_them_and_what_ran_before_a_reset_is_not(
    config: Config, workspace: Workspace
) -> None:
    def record(instance: str, lo: int, hi: int, began: float) -> None:
        session = make_session(began)
        with LedgerWriter(workspace.ledger_dir, "w", session=session, study_id="s1") as ledger:
            ledger.append(RangeRecord(instance=instance, lo=lo, hi=hi, outcome=Outcome.OK))

    def missing(instance: str) -> list[tuple[int, int]]:
        return replay(workspace.ledger_dir, workspace.plan).outcomes[instance].ranges([NO_OUTCOME])

    record("sim", 0, 4, 1.0)
    record("post", 0, 4, 1.0)
    open_study(workspace, config, again=Again(tasks={"sim": [(0, 3)]}))
    cancel(workspace, config)
    assert "lost" not in open_study(workspace, config).note
    assert (missing("sim"), missing("post")) == ([(0, 3)], [])
    cancel(workspace, config)
    record("post", 2, 4, time.time() + 60)  # and the record of task 2 of sim, which it ran on, is lost
    assert "1 task that ran on what it recorded runs again" in open_study(workspace, config).note
    assert (missing("sim"), missing("post")) == ([(0, 3)], [(2, 3)])


def test_a_worker_leaves_a_study_to_the_command_that_has_it(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    worker.client.flushall()
    with lock(workspace):
        assert worker.publish_again() == "busy"
    open_study(workspace, config)
    token = worker.token()
    assert worker.publish_again() == "busy"
    assert worker.token() == token


def test_a_restart_waits_for_the_worker_that_publishes_just_now(
    config: Config, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_held, is_enough = threading.Event(), threading.Event()

    def hold() -> None:
        with lock(workspace):
            is_held.set()
            is_enough.wait(120)

    thread = threading.Thread(target=hold)
    thread.start()
    assert is_held.wait(120)
    monkeypatch.setattr(opening, "LOCK_S", 0.2)
    with pytest.raises(WorkspaceError, match="in use"):
        open_study(workspace, config)
    monkeypatch.setattr(opening, "LOCK_S", 60.0)
    threading.Timer(0.3, is_enough.set).start()
    assert open_study(workspace, config).num_messages == 1
    thread.join()


def test_what_was_cancelled_is_not_published_again(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    cancel(workspace, config)
    worker.client.flushall()
    assert worker.publish_again() == "over"
    assert not worker.mailbox.exists()


def test_what_a_worker_has_reported_and_handed_in_since_is_not_said_to_run(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    held = worker.take()
    chunks = [
        RunningChunk(study="s1", instance="sim", lo=lo, hi=hi, since=1.0)
        for lo, hi in ((held.lo, held.hi), (3, 4))
    ]
    worker.registry.beat(
        WorkerInfo(
            name="w", host="n9", pid=1, queues=[], concurrency=1, started=1.0, version="1", running=chunks
        )
    )
    report = cancel(workspace, config, limit_s=0.0)
    assert [(chunk.lo, chunk.hi) for chunk in report.before] == [(held.lo, held.hi)]
    assert len(report.after) == 2, "it has not said that it has killed them"


def test_a_cancellation_counts_even_from_a_host_whose_clock_is_an_hour_behind(
    config: Config, workspace: Workspace, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_study(workspace, config)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() - 3600)
    cancel(workspace, config)
    worker.client.flushall()
    assert worker.publish_again() == "over"


def test_a_publication_that_was_killed_before_redis_heard_of_it_is_completed(
    config: Config, workspace: Workspace, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(RedisMailbox, "open", killed)
        open_study(workspace, config)
    assert [s.study_id for s in worker.registry.studies()] == ["s1"]
    assert worker.publish_again() == "published"


# ----------------------------------------------------------------------- restarting


def test_a_lease_that_has_run_out_does_not_keep_a_study_from_being_restarted(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    chunk = worker.take()
    assert stop(workspace, config, "enough") == 1
    with pytest.raises(ExecutionError, match="1 chunks"):
        open_study(workspace, config)
    short = RedisBackend(config, worker.client, lease_s=0.2).leases("s1")
    assert short.renew([chunk.lease]) == set()  # from now on it lasts no longer
    wait_until(lambda: worker.mailbox.offers()[0].expires_s < 0)
    assert open_study(workspace, config).num_messages == 1
    assert worker.mailbox.num_held() == 0


def test_a_restart_of_a_running_study_makes_sure_that_workers_look_after_it(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    worker.registry.withdraw("s1")
    assert open_study(workspace, config).num_messages == 1
    assert [s.study_id for s in worker.registry.studies()] == ["s1"]


def test_a_plan_that_was_altered_does_not_take_the_place_of_one_that_runs(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    altered = tuple(replace(i, command="touch pwned") for i in workspace.plan.instances)
    write_plan(workspace.plan_path, replace(workspace.plan, instances=altered))
    with pytest.raises(ExecutionError, match=r"altered.*merlin cancel"):
        open_study(open_workspace(workspace.path), config)
    assert [s.plan for s in worker.registry.studies()] == [workspace.digest]
    cancel(workspace, config)
    assert open_study(open_workspace(workspace.path), config).num_messages == 1


def test_a_restart_outranks_a_run_whose_clock_was_an_hour_ahead(config: Config, workspace: Workspace) -> None:
    ahead = make_session(time.time() + 3600)
    with LedgerWriter(workspace.ledger_dir, "w", session=ahead, study_id="s1") as ledger:
        ledger.append(
            RangeRecord(instance="sim", lo=0, hi=4, outcome=Outcome.FAILED, cause="x", attempt=1),
            RangeRecord(instance="post", lo=0, hi=4, outcome=Outcome.SKIPPED, cause="x", attempt=1),
            EventRecord(kind="run_stopped", data={"reason": "x"}),
        )
    assert open_study(workspace, config, again=Again(failed=True)).num_messages == 1
    found = replay(workspace.ledger_dir, workspace.plan)
    assert found.counts()["sim"] == {255: 4}
    assert [e.kind for e in found.events()] == ["run_stopped", "run_started"]


# ------------------------------------------------------------------ an owner's ledger


def test_what_the_owner_of_an_earlier_run_has_decided_is_not_written_into_the_next(
    config: Config, workspace: Workspace, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_study(workspace, config)
    (info,) = worker.registry.studies()
    mailbox = worker.backend.mailbox("s1")
    ownership = Ownership(worker.study, info.session, mailbox, mailbox.own(info.session), worker.tools)
    try:
        worker.fail(worker.take())  # what follows from it are verdicts on the tasks of `post`
        letters = [mailbox.letters()]
        monkeypatch.setattr(
            mailbox, "letters", lambda *_: letters.pop() if letters else []
        )  # they were on the way
        assert open_study(workspace, config, again=Again(failed=True)).num_messages == 1
        with pytest.raises(OwnershipLostError):
            ownership.work(0.0)
    finally:
        ownership.close()
    found = replay(workspace.ledger_dir, workspace.plan)
    assert found.counts() == {"sim": {255: 4}, "post": {255: 4}}


def test_monitor_writes_down_what_follows_from_the_last_outcome_if_all_workers_are_dead(
    config: Config, workspace: Workspace, worker: Worker
) -> None:
    open_study(workspace, config)
    worker.fail(worker.take())
    source = PublishedStudy(workspace, config)
    assert source.look().state == "complete"
    source.settle()
    found = replay(workspace.ledger_dir, workspace.plan)
    assert found.counts() == {"sim": {FAILED: 4}, "post": {int(Outcome.SKIPPED): 4}}
    assert [e.kind for e in found.events()][-1] == "run_finished"
    assert worker.registry.studies() == []
    assert open_study(workspace, config).is_complete


# --------------------------------------------------------------- what workers know


def test_a_workspace_behind_a_link_is_opened_once(workspace: Workspace) -> None:
    link = workspace.path.parent / "link"
    link.symlink_to(workspace.path)
    studies = Studies()
    digest = plan_digest(workspace.plan)
    first = studies.get("s1", str(link), digest)
    assert studies.get("s1", str(link), digest) is first
    assert studies.known() == [first]
    studies.forget("s1")
    assert studies.known() == []


def test_a_worker_of_another_version_does_not_upset_the_others(config: Config, worker: Worker) -> None:
    key = f"merlin:{config.namespace}"
    worker.client.hset(f"{key}:workers", "celery@new", '{"name": "celery@new", "colour": "blue"}')
    worker.client.zadd(f"{key}:beats", {"celery@new": time.time()})
    assert worker.registry.workers() == []
