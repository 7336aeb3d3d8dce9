"""`merlin run` is killed in the middle of publishing, byte by byte."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
from commands import WarmCommand
from effort import repeats
from injections import draw_seed
from installation import Installation, installation
from lines_study import LinesStudy, write_spec
from servers import RedisServer
from tripwire import Tripwire
from waiting import wait_until

pytestmark = pytest.mark.slow
NUM_CUTS = repeats(3, 12)


def publish_through(home: Installation, redis: RedisServer, folder: Path, trip_at: int | None) -> int:
    """Run `merlin run` behind a wire at which it is killed; returns how many bytes it sent."""
    commands: list[WarmCommand] = []

    def kill() -> None:
        wait_until(lambda: commands)  # it may speak before we know it
        os.kill(commands[0].pid, signal.SIGKILL)

    with Tripwire(redis.port, trip_at=trip_at, action=kill) as wire:
        url = redis.url.replace(f":{redis.port}/", f":{wire.port}/")
        spec = write_spec(folder)
        words = ["run", spec, "--vars", "N=40", "SLEEP=0", "SHARD=20", f"OUTPUT_PATH={folder}"]
        command = home.start(*words, MERLIN_BROKER_URL=url, MERLIN_BACKEND_URL=url)
        commands.append(command)
        out, err = command.communicate(timeout=120)
        assert (command.returncode == -9) == wire.has_tripped, (command.returncode, out, err)
        return wire.num_bytes


def test_a_run_killed_while_it_publishes_is_finished_by_restart(
    tmp_path: Path, own_redis: RedisServer
) -> None:
    rng = random.Random(draw_seed())
    with installation(tmp_path, own_redis, lease_s=60.0) as home:
        publish_through(home, own_redis, tmp_path / "first", None)  # it also teaches Redis the scripts
        num_bytes = publish_through(home, own_redis, tmp_path / "other", None)
        cuts = [1, num_bytes - 20, *rng.sample(range(2, num_bytes - 20), NUM_CUTS)]
        print(f"cut after {cuts} of {num_bytes} bytes")
        for number, cut in enumerate(cuts):
            publish_through(home, own_redis, tmp_path / f"cut-{number}", cut)
        folders = [tmp_path / name for name in ("first", "other", *(f"cut-{n}" for n in range(len(cuts))))]
        for folder in folders[2:]:
            for plan in folder.glob("*/merlin_info/plan.json"):
                home.merlin("restart", plan.parents[1])
        home.start_worker(write_spec(tmp_path / "first"))
        studies = [
            LinesStudy(home, folder / "lines.yaml", plan.parents[1])
            for folder in folders
            for plan in folder.glob("*/merlin_info/plan.json")
        ]
        assert len(studies) > NUM_CUTS // 2
        wait_until(
            lambda: all(s.num_ended == s.planned for s in studies), home.describe, 120 + 10 * len(studies)
        )
        for study in studies:
            assert study.check().num_again == 0
        home.stop_workers()
