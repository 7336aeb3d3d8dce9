"""A study that stalls because no worker is left: who watches it tells people."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from small_plans import step
from study_on_disk import make_workspace
from waiting import wait_until

from merlin.errors import RedisUnreachableError
from merlin.execution import notices
from merlin.execution.conductor import append_records
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import replay
from merlin.ledger.session import make_session
from merlin.plan.notify_rule import NotifyRule
from merlin.plan.task_states import TaskCounts
from merlin.views.unowned import StallNotices
from merlin.views.watch import Look
from merlin.workspace.directory import Workspace

LEFT = TaskCounts(planned=5, ok=0, failed=0, skipped=0, running=0, ready=5, waiting=0, queued=0)


UNSERVED = Look(state="running", per_step={"sim": LEFT})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "told"


@pytest.fixture
def workspace(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setattr(notices, "LOOK_S", 0.01)
    rule = NotifyRule(when=("stall",), channel="cmd", to=(f"echo $MERLIN_EVENT >> {file}",), after_s=60.0)
    made = make_workspace(tmp_path, step("sim", 5), notify=(rule,))
    append_records(made, make_session(1000.0), EventRecord(kind="run_started", data={"executor": "celery"}))
    return made


def num_told(workspace: Workspace) -> int:
    events = replay(workspace.ledger_dir, workspace.plan).events()
    return sum(event.kind == "notified" for event in events)


def test_a_stall_without_an_owner_is_told_once_whoever_watches(workspace: Workspace, file: Path) -> None:
    def is_told() -> bool:
        told.tell(UNSERVED)
        return num_told(workspace) == 1

    told = StallNotices(workspace, lambda: False, pytest.fail)
    wait_until(is_told)
    another = StallNotices(workspace, lambda: False, pytest.fail)
    for _ in range(5):
        another.tell(UNSERVED)
    assert file.read_text() == "stall\n"
    assert num_told(workspace) == 1


def test_an_owner_tells_it_itself(workspace: Workspace) -> None:
    asked: list[int] = []
    told = StallNotices(workspace, lambda: not asked.append(1), pytest.fail)
    told.tell(UNSERVED)
    assert asked, "another worker may own the study"
    asked.clear()
    told.tell(replace(UNSERVED, num_workers=1))
    told.tell(replace(UNSERVED, state="gone"))
    assert not asked
    assert num_told(workspace) == 0


def test_servers_that_do_not_answer_are_said_and_end_nothing(workspace: Workspace) -> None:
    def unreachable() -> bool:
        raise RedisUnreachableError("away")

    said: list[str] = []
    StallNotices(workspace, unreachable, said.append).tell(UNSERVED)
    assert said == ["cannot find out who is to be told: away"]
