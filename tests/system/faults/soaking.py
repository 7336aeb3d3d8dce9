"""A study under random faults, on either broker; how many, the environment says."""

from __future__ import annotations

import os
import random
from pathlib import Path

from injections import Scene, draw_seed
from installation import installation
from lines_study import LinesStudy
from messages import messages_of
from servers import RabbitServer, RedisServer

NUM_FAULTS = int(os.environ.get("MERLIN_SOAK_FAULTS") or 12)
NUM_SAMPLES = max(1000, min(2000, 50 * NUM_FAULTS))
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
