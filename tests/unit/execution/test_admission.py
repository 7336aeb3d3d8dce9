"""Messages of chunks that find no room in a worker: they wait, go back, or have room kept for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_plans import step
from study_on_disk import make_workspace

from merlin.execution.distributed import admission
from merlin.execution.distributed.admission import Admission, Admitted, Arrival
from merlin.execution.distributed.messages import Notice
from merlin.execution.distributed.slots import Slots
from merlin.execution.distributed.study import Study
from merlin.execution.machine import Machine
from merlin.execution.places import Places

LATER = 1e9  # monotonic
Come = Callable[..., Arrival]


@pytest.fixture
def come(tmp_path: Path) -> Iterator[Come]:
    steps = [
        step("small", 9),
        step("wide", 9, resources={"procs": 4}),
        step("gpu", 9, resources={"gpus": 1}),
    ]
    workspace = make_workspace(tmp_path, *steps)
    study, numbers = Study(workspace), iter(range(99))

    def come(name: str) -> Arrival:
        notice = Notice(
            study=study.id,
            workspace=str(workspace.path),
            plan=workspace.digest,
            session="1",
            instance=name,
            lo=0,
            hi=1,
            lease=str(next(numbers)),
        )
        return Arrival(notice=notice, study=study, envelope={})

    yield come


@pytest.fixture
def slots() -> Slots:
    return Slots(4)


@pytest.fixture
def worker(tmp_path: Path, slots: Slots) -> Admission:
    return Admission(Places(Machine(cores=(0, 1, 2, 3)), 4, tmp_path / "locks"), 4, slots)


def entered(worker: Admission, arrival: Arrival) -> Admitted:
    admitted = worker.enter(arrival)
    assert isinstance(admitted, Admitted)
    return admitted


def test_a_message_that_finds_no_room_is_next_when_a_chunk_has_ended(worker: Admission, come: Come) -> None:
    first = entered(worker, come("small"))
    wide = come("wide")
    assert worker.enter(wide) is None
    second = entered(worker, come("small"))  # passes it
    assert worker.left(first) is None
    following = worker.left(second)
    assert following is not None
    assert following.arrival is wide
    assert following.assignment is not None
    assert following.assignment.cores == (0, 1, 2, 3)


def test_no_message_is_received_while_there_are_no_cores(worker: Admission, come: Come, slots: Slots) -> None:
    wide = entered(worker, come("wide"))
    slots.take()
    assert not slots.has_room()
    assert worker.left(wide) is None
    slots.free()
    assert slots.has_room()


def test_room_is_kept_for_one_that_has_waited_for_long(
    worker: Admission, come: Come, slots: Slots, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = entered(worker, come("small"))
    slots.take()
    wide, other = come("wide"), come("small")
    assert worker.enter(wide) is None
    monkeypatch.setattr(admission, "PASSING_S", 0.0)
    assert worker.enter(other) is None
    assert not slots.has_room()
    assert worker.to_return(LATER) == [
        other
    ]  # somebody else may have room; for the first one it is kept here
    following = worker.left(running)
    assert following is not None
    assert following.arrival is wide


def test_a_message_goes_back_when_others_may_have_room(worker: Admission, come: Come) -> None:
    wide = entered(worker, come("wide"))
    first, second, never = come("wide"), come("small"), come("gpu")
    assert [worker.enter(a) for a in (first, second, never)] == [None, None, None]
    assert worker.to_return(first.since) == []
    assert worker.to_return(LATER) == [second, never]
    assert worker.close() == [first]
    assert worker.left(wide) is None


def test_a_worker_takes_in_no_more_than_it_can_run(
    worker: Admission, come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "HOLD_S", 0.01)
    entered(worker, come("wide"))
    for _ in range(4):
        assert worker.enter(come("small")) is None
    one_more = come("small")
    assert worker.enter(one_more) is one_more


def test_a_message_that_was_sent_twice_runs_once(worker: Admission, come: Come) -> None:
    small, wide = come("small"), come("wide")
    running = entered(worker, small)
    assert worker.enter(small) is None
    assert worker.enter(wide) is None
    assert worker.enter(wide) is None
    following = worker.left(running)
    assert following is not None
    assert worker.left(following) is None


def test_of_two_messages_for_one_chunk_that_wait_together_one_is_let_in(
    worker: Admission, come: Come, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, small, inside = entered(worker, come("wide")), come("small"), []
    for _ in range(4):
        assert worker.enter(come("gpu")) is None

    def wait(limit_s: float) -> None:
        """Meanwhile a chunk ends, and the other message comes in."""
        assert worker.left(wide) is None
        inside.append(entered(worker, small))

    monkeypatch.setattr(worker._lock, "wait", wait)
    assert worker.enter(small) is None
    assert worker.left(inside.pop()) is None
    entered(worker, come("wide"))  # all cores are free again
