"""The worker that owns the study, and so decides what runs, is killed, stopped and doubled; its letters are lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import before_ours
from installation import Installation, Worker, installation
from lines_study import LinesStudy
from servers import RedisServer
from waiting import wait_until

pytestmark = pytest.mark.slow
VARIABLES = ("N=60", "SLEEP=0.02", "SHARD=30")


@pytest.fixture
def home(tmp_path: Path, own_redis: RedisServer) -> Iterator[Installation]:
    with installation(tmp_path, own_redis) as made:
        yield made


def begun(home: Installation) -> LinesStudy:
    """A study that two workers run, and that does not end before it is let go."""
    study = LinesStudy.publish(home, *VARIABLES, held=True)
    home.replace_workers(study.spec, 2)
    study.wait_for(40)
    return study


def owner_of(study: LinesStudy, *, but: Worker | None = None) -> Worker:
    found: list[Worker] = []

    def exists() -> bool:
        found[:] = [worker for worker in (study.home.owner(study.id),) if worker not in (None, but)]
        return bool(found)

    wait_until(exists, study.show)
    return found[0]


def finish(study: LinesStudy) -> None:
    study.let_go()
    study.wait_for_end()
    study.check()
    study.home.stop_workers()


@pytest.mark.parametrize("whole", [False, True], ids=["the process", "the machine"])
def test_another_worker_owns_a_study_whose_owner_was_killed(home: Installation, whole: bool) -> None:
    study = begun(home)
    owner = owner_of(study)
    owner.kill(whole=whole)
    home.workers.remove(owner)
    owner_of(study, but=owner)
    finish(study)


@pytest.mark.parametrize("whole", [False, True], ids=["alone", "with its processes"])
def test_an_owner_that_wakes_up_when_another_one_owns_the_study_decides_nothing(
    home: Installation, whole: bool
) -> None:
    study = begun(home)
    first = owner_of(study)
    first.freeze(whole=whole)
    second = owner_of(study, but=first)
    first.thaw()  # it believes that it is the owner, and the study goes on
    second.freeze(whole=whole)
    assert owner_of(study, but=second) is first
    second.thaw()
    finish(study)


DIES = """
import os, signal
from merlin.execution.distributed.publish import RedisCarrier
send, num = RedisCarrier.send, iter(range(10**9))
def die(self, *words, **more):
    if next(num) == {num}:
        os.kill(os.getpid(), signal.SIGKILL)
    return send(self, *words, **more)
RedisCarrier.send = die
"""


@pytest.mark.parametrize("num", [0, 5])
def test_what_was_offered_by_an_owner_that_died_before_it_sent_the_message_runs(
    home: Installation, num: int
) -> None:
    (home.folder / "dies").mkdir()
    (home.folder / "dies/sitecustomize.py").write_text(DIES.format(num=num))
    study = LinesStudy.publish(home, *VARIABLES)
    owner = home.start_worker(study.spec, PYTHONPATH=before_ours(home.folder / "dies"))
    wait_until(lambda: not owner.is_alive, study.show)
    with home.redis.client() as client:
        assert client.hlen(home.key(study.id, "offers")) > 0
    owner.kill(whole=True)
    home.replace_workers(study.spec, 1)
    study.wait_for_end()
    study.check()
    home.stop_workers()


@pytest.mark.parametrize("command", ["DEL", "XTRIM"])
def test_letters_to_the_owner_may_be_lost(home: Installation, command: str) -> None:
    study = begun(home)
    (home.folder / "hold").unlink()
    more = ("MAXLEN", "0") if command == "XTRIM" else ()
    with home.redis.client() as client:
        for goal in range(40, study.planned - 20, 15):
            study.wait_for(goal)
            client.execute_command(command, home.key(study.id, "mail"), *more)
    study.wait_for_end()
    study.check()
    home.stop_workers()
