"""A study under random faults; a larger one and many more faults with `make soak`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from injections import Scene, draw_seed
from installation import installation
from lines_study import LinesStudy
from messages import messages_of
from servers import RabbitServer, RedisServer, rabbitmq_server

NUM_FAULTS = int(os.environ.get("MERLIN_SOAK_FAULTS") or 12)
NUM_SAMPLES = max(1000, min(2000, 50 * NUM_FAULTS))
FEWER = 1 if "MERLIN_SOAK_FAULTS" in os.environ else 4  # with RabbitMQ, in a run of all tests
SLEEP = 0.02 if NUM_FAULTS <= 100 else 0.05  # seconds of each task, so that the faults find it running


def soak(
    folder: Path, broker: RedisServer | RabbitServer, redis: RedisServer, num_samples: int, num_faults: int
) -> None:
    seed = draw_seed()
    with installation(folder, broker, redis) as home:
        study = LinesStudy.publish(home, f"N={num_samples}", f"SLEEP={SLEEP}")
        messages = messages_of(home, broker, ["writes", "copies", "shards"])
        rabbit = broker if isinstance(broker, RabbitServer) else None
        scene = Scene(home, study, redis, messages, random.Random(seed), rabbit=rabbit)
        scene.mend()
        for k in range(num_faults):
            scene.run_until((study.planned - 1) * k // num_faults)
            scene.breathe()
            scene.inject()
        scene.mend(all=True)
        scene.run_until(study.planned)
        facts = study.check()
        home.stop_workers()
    scene.say(f"{facts}, {facts.num_again} runs of tasks were repeated; {dict(scene.num_injected)}")
    assert scene.num_injected.total() == num_faults


@pytest.mark.slow
@pytest.mark.timeout(300 + 8 * NUM_FAULTS)
def test_random_faults_cost_time_and_nothing_else(tmp_path: Path, own_redis: RedisServer) -> None:
    soak(tmp_path, own_redis, own_redis, NUM_SAMPLES, NUM_FAULTS)


@pytest.mark.slow
@pytest.mark.timeout(300 + 8 * NUM_FAULTS)
def test_random_faults_with_rabbitmq_cost_time_and_nothing_else(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    with rabbitmq_server(tmp_path) as rabbit:
        soak(tmp_path, rabbit, own_redis, NUM_SAMPLES // FEWER, NUM_FAULTS // FEWER)
