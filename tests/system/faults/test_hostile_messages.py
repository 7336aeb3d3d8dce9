"""Strangers write into the queues of a study that runs; on both brokers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from effort import repeats
from hostile import DEEP, HostileRabbit, HostileRedis
from injections import draw_seed
from installation import Installation, installation
from lines_study import LinesStudy
from servers import RedisServer
from waiting import wait_until

pytestmark = pytest.mark.slow
QUEUES = ("writes", "copies", "shards")
MAX_GROWTH_KB = 200_000  # what unpacks a bomb grows by more; what reads it does not


@pytest.fixture(params=["redis", "rabbitmq"])
def home(request: pytest.FixtureRequest, tmp_path: Path, any_redis: RedisServer) -> Iterator[Installation]:
    broker = any_redis if request.param == "redis" else request.getfixturevalue("any_rabbit")
    with installation(tmp_path, broker, any_redis, lease_s=60.0) as made:
        yield made


def num_refused(home: Installation) -> int:
    with home.redis.client() as client:
        return int(client.hget(f"merlin:{home.config().namespace}:counters", "refused") or 0)


def highest_memory_kb(pid: int) -> int:
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1])


def test_whatever_comes_over_the_wire_is_refused_and_counted_while_a_study_runs(home: Installation) -> None:
    rng = random.Random(draw_seed())
    hostile = (HostileRedis if home.broker is home.redis else HostileRabbit)(home.broker, rng)
    study = LinesStudy.publish(home, "N=40", "SLEEP=0", "SHARD=20", held=True)
    names = [home.config().queue_name(queue) for queue in QUEUES]
    num = hostile.send(names[0])  # they wait before the first worker comes
    home.replace_workers(study.spec, 1)
    (worker,) = home.workers
    study.wait_for(1)
    before_kb = highest_memory_kb(worker.pid)
    for _ in range(repeats(1, 50)):
        num += sum(hostile.send(name) for name in names[1:])
        bodies = [rng.randbytes(rng.randrange(100)) for _ in range(100)]
        num += hostile.send_bytes(rng.choice(names), bodies)
    study.let_go()
    study.wait_for_end()
    wait_until(
        lambda: num_refused(home) >= num or not worker.is_alive, lambda: f"{num_refused(home)} of {num}"
    )
    assert num_refused(home) == num
    assert worker.is_alive, worker.tail()
    assert highest_memory_kb(worker.pid) - before_kb < MAX_GROWTH_KB
    assert study.check().num_again == 0
    with home.redis.client() as client:
        wait_until(lambda: not client.exists("unacked"), worker.tail)  # nothing fills the worker's window
    log = worker.log.read_text()  # it is UTF-8, whatever came
    assert "Traceback" not in log, worker.tail()
    assert len(log) < 60_000, "the log grows with what strangers send"
    assert "\x1b[2J" not in log
    home.stop_workers()


def test_other_keys_of_a_redis_broker_are_written_to_by_strangers(
    tmp_path: Path, any_redis: RedisServer
) -> None:
    with installation(tmp_path, any_redis) as home:
        study = LinesStudy.publish(home, "N=60", "SLEEP=0", "SHARD=10", held=True)
        with any_redis.client(decode_responses=False) as client:
            client.set(f"{home.config().queue_name('writes')}\x06\x169", "no list")
            taken = [b"", b"\xff", b"[" * DEEP, b"[1, 2, 3]", b'[{}, "", ""]', b'[{}, "x", []]', b"5", b"{}"]
            for number, text in enumerate(taken):
                client.hset("unacked", f"tag{number}", text)
                client.zadd("unacked_index", {f"tag{number}": 1})
        home.replace_workers(study.spec, 1)
        (worker,) = home.workers
        study.wait_for(1)
        with any_redis.client() as client:  # while the worker listens to it
            client.set(f"{home.config().queue_name('shards')}\x06\x169", "no list")
        study.let_go()
        study.wait_for_end()
        study.check()
        with any_redis.client() as client:
            assert client.hlen("unacked") == len(taken), "nobody reads what Kombu would have put back"
        assert "Traceback" not in worker.log.read_text(), worker.tail()
        home.stop_workers()
