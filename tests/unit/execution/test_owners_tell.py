"""An owner tells people what has become of the study: once, whoever is the owner, and at least once whoever dies."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster, run_ok
from small_plans import step
from waiting import wait_until

from merlin.errors import RedisUnreachableError
from merlin.execution import notices
from merlin.execution.distributed import owners
from merlin.execution.distributed.ownership import Ownership
from merlin.plan.notify_rule import NotifyRule
from merlin.plan.tasks import Outcome


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "LOOK_S", 0.01)
    monkeypatch.setattr(owners, "LIST_S", 0.05)
    monkeypatch.setattr(owners, "WAIT_S", 0.02)


def appends(file: Path, *when: str, **more: float) -> NotifyRule:
    """Writes a line into a file for every message."""
    return NotifyRule(when=when, channel="cmd", to=(f"echo $MERLIN_EVENT $MERLIN_FAILED >> {file}",), **more)


def own(cluster: Cluster) -> Ownership:
    """Own the study by force, as if whoever owned it had been killed."""
    tools = cluster.tools()
    mailbox = tools.backend.mailbox(cluster.study.id)
    return Ownership(cluster.study, cluster.session, mailbox, mailbox.own(cluster.session, force=True), tools)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def until_over(owner: Ownership) -> None:
    def is_over() -> bool:
        owner.work(0.0)
        return owner.is_over

    wait_until(is_over)


def test_the_end_is_told_once_by_workers_that_all_may_own_the_study(tmp_path: Path) -> None:
    told = tmp_path / "told"
    cluster = Cluster(tmp_path, step("sim", 20), notify=(appends(told, "finished", "failed"),)).publish()
    try:
        for _ in range(3):
            cluster.worker(run_ok).start()
        cluster.wait_until_over()
        assert lines(told) == ["finished 0"]
        assert [data["event"] for data in cluster.data_of("notified")] == ["finished"]
    finally:
        cluster.close()


def test_an_heir_does_not_repeat_what_the_last_owner_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "told"
    cluster = Cluster(tmp_path, step("sim", 1), notify=(appends(told, "stopped"),)).publish()
    owner = own(cluster)
    owner.owner.scheduler.stop("enough")
    monkeypatch.setattr(owner._mailbox, "close", lambda: (_ for _ in ()).throw(RedisUnreachableError("away")))
    with pytest.raises(RedisUnreachableError):  # it is recorded that people were told, and the owner dies
        until_over(owner)
    assert lines(told) == ["stopped 0"]
    until_over(own(cluster))
    assert lines(told) == ["stopped 0"]
    assert not cluster.mailbox().exists()


def test_an_heir_tells_what_the_last_owner_could_not(tmp_path: Path) -> None:
    gate, told = tmp_path / "gate", tmp_path / "told"
    waits = NotifyRule(when=("stopped",), channel="cmd", to=(f"test -e {gate} && echo told >> {told}",))
    cluster = Cluster(tmp_path, step("sim", 1), notify=(waits,)).publish()
    owner = own(cluster)
    owner.owner.scheduler.stop("enough")
    owner.settle()  # it begins to tell, and dies
    assert owner._notices.is_sending
    assert not owner.is_over
    owner._notices.kill()
    gate.touch()
    until_over(own(cluster))
    assert lines(told) == ["told"]


def test_a_stall_is_told_by_the_owner_once_until_something_ends(tmp_path: Path) -> None:
    told = tmp_path / "told"
    cluster = Cluster(tmp_path, step("sim", 5), notify=(appends(told, "stall", after_s=0.05),)).publish()
    owner = own(cluster)

    def is_told() -> bool:
        owner.work(0.0)
        return bool(cluster.data_of("notified"))

    wait_until(is_told)
    heir = own(cluster)
    for _ in range(20):
        heir.work(0.01)
    assert lines(told) == ["stall 0"]


def test_failures_are_told_to_whoever_restarts_the_study_only_if_nobody_was_told_yet(tmp_path: Path) -> None:
    told = tmp_path / "told"
    rule = appends(told, "failures", above=2)
    cluster = Cluster(tmp_path, step("sim", 8, canary=0), notify=(rule,)).publish()
    try:
        cluster.worker(lambda work: work.finish(Outcome.FAILED)).start()
        cluster.wait_until_over()
        assert [line.split()[0] for line in lines(told)] == ["failures"]
        cluster.publish()
        cluster.wait_until_over()
        assert len(lines(told)) == 1
    finally:
        cluster.close()
