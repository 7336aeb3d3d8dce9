"""Messages are delivered twice, late, never, or were written by somebody else; on both brokers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from injections import draw_seed
from installation import Installation, installation
from lines_study import LinesStudy
from messages import Messages, messages_of
from servers import RedisServer
from waiting import wait_until

pytestmark = pytest.mark.slow
VARIABLES = ("N=100", "SLEEP=0.02", "SHARD=50")
QUEUES = ["writes", "copies", "shards"]


@pytest.fixture(params=["redis", "rabbitmq"])
def home(request: pytest.FixtureRequest, tmp_path: Path, any_redis: RedisServer) -> Iterator[Installation]:
    broker = any_redis if request.param == "redis" else request.getfixturevalue("any_rabbit")
    # no lease runs out, however slow the machine is: what runs twice does so because of a message
    with installation(tmp_path, broker, any_redis, lease_s=60.0) as made:
        yield made


def published(home: Installation) -> tuple[LinesStudy, Messages, random.Random]:
    study = LinesStudy.publish(home, *VARIABLES)
    return study, messages_of(home, home.broker, QUEUES), random.Random(draw_seed())


def test_a_message_delivered_twice_does_its_work_once(home: Installation) -> None:
    study, messages, rng = published(home)
    for _ in range(5):
        assert messages.double(rng)
    home.replace_workers(study.spec, 2)
    for goal in range(0, study.planned, 40):
        study.wait_for(goal)
        messages.double(rng)
        assert messages.replay(rng)
    study.wait_for_end()
    assert study.check().num_again == 0
    home.stop_workers()


def test_lost_messages_are_sent_again(home: Installation) -> None:
    study, messages, rng = published(home)
    while messages.drop(rng):
        pass
    home.replace_workers(study.spec, 2)
    for goal in range(0, study.planned, 60):
        study.wait_for(goal)
        messages.drop(rng)
    study.wait_for_end()
    assert study.check().num_again == 0
    home.stop_workers()


def test_forged_messages_are_refused_and_counted(home: Installation) -> None:
    study, messages, rng = published(home)
    messages.look()
    for _ in range(8):
        assert messages.forge(rng)
    home.replace_workers(study.spec, 2)
    study.wait_for_end()
    assert study.check().num_again == 0
    assert all(worker.is_alive for worker in home.workers), home.tails()
    assert any("refused:" in worker.log.read_text() for worker in home.workers), home.tails()
    # the study may have ended before the last of them was looked at
    counters = f"merlin:{home.config().namespace}:counters"
    with home.redis.client() as client:
        wait_until(lambda: int(client.hget(counters, "refused") or 0) >= 8, home.tails)
    home.stop_workers()


def test_what_is_no_message_at_all_does_not_stop_a_worker(tmp_path: Path, any_redis: RedisServer) -> None:
    with installation(tmp_path, any_redis) as home:
        study = LinesStudy.publish(home, "N=20", "SLEEP=0", "SHARD=10")
        with any_redis.client() as client:
            for text in (
                "",
                "no JSON",
                b"\xff",
                "1",
                "[]",
                "{}",
                '{"body": 1}',
                '{"body": "x", "headers": {}}',
            ):
                client.rpush(home.config().queue_name("writes"), text)
        home.replace_workers(study.spec, 1)
        study.wait_for_end()
        study.check()
        home.stop_workers()
