"""Workers are told to leave while servers are away or tasks go on for ever: they are gone in time, all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from installation import Installation, Worker, installation
from servers import RedisServer
from waiting import wait_until

pytestmark = pytest.mark.slow
GRACE_S = 1.0  # instead of 10, for chunks to end by themselves; interrupting and giving up take 14 more
SPEC = """
description: {name: long, description: one step whose tasks do not end}
study:
  - name: sim
    run: {cmd: "sleep 600 & sleep 601 # $(X)"}
merlin:
  samples: {column_labels: [X], file: samples.csv}
"""


@pytest.fixture
def home(tmp_path: Path, own_redis: RedisServer) -> Iterator[Installation]:
    with installation(tmp_path, own_redis) as made:
        yield made
    wait_until(lambda: not made.processes(), made.processes)


@pytest.fixture
def worker(home: Installation) -> Worker:
    """A worker that runs two tasks which do not end."""
    spec = home.folder / "long.yaml"
    spec.write_text(SPEC)
    (home.folder / "samples.csv").write_text("1\n2\n3\n")
    home.env["MERLIN_STOP_GRACE_S"] = str(GRACE_S)
    home.merlin("run", spec)
    started = home.start_worker(spec)
    wait_until(lambda: sum("sleep 601" in line for line in home.processes()) == 2, started.tail)
    return started


def test_a_worker_leaves_in_time_while_redis_does_not_answer(home: Installation, worker: Worker) -> None:
    assert home.redis is not None
    home.redis.pause()
    try:
        worker.terminate()
    finally:
        home.redis.resume()


def test_a_worker_leaves_in_time_while_redis_is_down(home: Installation, worker: Worker) -> None:
    assert home.redis is not None
    home.redis.kill9()
    worker.terminate()
    home.redis.start_again()


def test_a_worker_that_waits_for_its_tasks_leaves_when_it_is_told_again(
    home: Installation, worker: Worker
) -> None:
    home.merlin("stop-workers")
    wait_until(lambda: "command: stop" in worker.log.read_text(), worker.tail)
    home.merlin("stop-workers")  # the same wish again is no hurry
    wait_until(lambda: worker.log.read_text().count("command: stop") == 2, worker.tail)
    assert worker.is_alive and sum("sleep 601" in line for line in home.processes()) == 2
    assert worker.terminate() == 0
