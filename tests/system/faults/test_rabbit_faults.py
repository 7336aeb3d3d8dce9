"""RabbitMQ dies while workers run a study; it takes seconds to start, so the tests share one that they may kill."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from installation import installation
from lines_study import LinesStudy
from servers import LOOPBACK, RabbitServer, RedisServer, group_members, listening
from soaking import NUM_FAULTS, NUM_SAMPLES, soak

FEWER = 1 if "MERLIN_SOAK_FAULTS" in os.environ else 4  # in a run of all tests


@pytest.fixture(scope="module")
def _rabbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitServer]:
    with RabbitServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


@pytest.fixture
def rabbit(_rabbit: RabbitServer) -> RabbitServer:
    """A RabbitMQ server that runs, and may be killed; queues of other tests may be in it, under other names."""
    if not _rabbit.is_running:  # a test has failed between its end and its next start
        _rabbit.start_again()
    return _rabbit


def publish(server: RabbitServer, text: str) -> None:
    with server.connection() as connection, connection.SimpleQueue("kept") as queue:
        queue.put(text)


def fetch(server: RabbitServer) -> str:
    with server.connection() as connection, connection.SimpleQueue("kept") as queue:
        message = queue.get(timeout=120)
        message.ack()
        return str(message.payload)


def test_rabbitmq_keeps_messages_over_a_crash_and_listens_on_loopback_alone(rabbit: RabbitServer) -> None:
    assert listening(rabbit.pid) == LOOPBACK
    publish(rabbit, "hello")
    group = rabbit.pid
    rabbit.kill9()
    assert group_members(group) == []
    rabbit.start_again()
    assert fetch(rabbit) == "hello"


@pytest.mark.slow
def test_rabbitmq_may_crash(tmp_path: Path, rabbit: RabbitServer, own_redis: RedisServer) -> None:
    with installation(tmp_path, rabbit, own_redis) as home:
        study = LinesStudy.publish(home, "N=60", "SLEEP=0.03", "SHARD=30")
        home.replace_workers(study.spec, 2)
        study.wait_for(40)
        rabbit.kill9()
        rabbit.start_again()
        study.wait_for_end()
        study.check()
        assert all(worker.is_alive for worker in home.workers), home.tails()
        home.stop_workers()


@pytest.mark.slow
@pytest.mark.timeout(300 + 8 * NUM_FAULTS)
def test_random_faults_with_rabbitmq_cost_time_and_nothing_else(
    tmp_path: Path, rabbit: RabbitServer, own_redis: RedisServer
) -> None:
    soak(tmp_path, rabbit, own_redis, NUM_SAMPLES // FEWER, NUM_FAULTS // FEWER)
