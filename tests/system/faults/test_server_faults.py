"""Redis dies, forgets, hangs and runs full while workers run a study, and RabbitMQ forgets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from installation import LEASE_S, Installation, installation
from lines_study import LinesStudy
from servers import RabbitServer, RedisServer
from tripwire import Tripwire
from waiting import wait_until

pytestmark = pytest.mark.slow
VARIABLES = ("N=60", "SLEEP=0.03", "SHARD=30")


def begun(home: Installation) -> LinesStudy:
    study = LinesStudy.publish(home, *VARIABLES)
    home.replace_workers(study.spec, 2)
    study.wait_for(40)
    return study


def finish(study: LinesStudy) -> None:
    """The same workers bring it to its end, and have lived through everything."""
    study.wait_for_end()
    study.check()
    assert all(worker.is_alive for worker in study.home.workers), study.home.tails()
    study.home.stop_workers()


def pass_time(seconds: float) -> None:
    """Time is the fault here: a server is away for so long."""
    time.sleep(seconds)


@pytest.fixture
def home(tmp_path: Path, own_redis: RedisServer) -> Iterator[Installation]:
    with installation(tmp_path, own_redis) as made:
        yield made


def test_redis_with_a_log_may_crash(home: Installation) -> None:
    study = begun(home)
    for down_s in (0.0, 1.5 * LEASE_S):
        home.redis.kill9()
        pass_time(down_s)
        home.redis.start_again()
    finish(study)


@pytest.mark.parametrize("command", ["restart", "monitor"])
def test_redis_without_a_log_may_crash_and_the_study_is_published_again(tmp_path: Path, command: str) -> None:
    with (
        RedisServer(tmp_path, appendonly=False) as server,
        installation(tmp_path, server) as home,
    ):
        study = begun(home)
        server.kill9()
        server.start_again()
        if command == "restart":
            home.restart(study.workspace.path)
        else:
            watching = home.start("monitor", study.spec, "--sleep", "1")
            study.wait_for_end()
            out, err = watching.communicate(timeout=120)
            assert watching.returncode == 0, out + err
        finish(study)


def test_redis_may_hang_for_longer_than_a_lease(home: Installation) -> None:
    study = begun(home)
    home.redis.pause()
    pass_time(3 * LEASE_S)
    home.redis.resume()
    finish(study)


def test_the_network_may_be_away_for_longer_than_a_lease(tmp_path: Path, own_redis: RedisServer) -> None:
    with Tripwire(own_redis.port) as wire, installation(tmp_path, own_redis) as home:
        through = own_redis.url.replace(f":{own_redis.port}/", f":{wire.port}/")
        home.env |= {"MERLIN_BROKER_URL": through, "MERLIN_BACKEND_URL": through}
        study = begun(home)
        wire.freeze()
        pass_time(2 * LEASE_S)
        wire.cut()
        wire.thaw()
        finish(study)


def test_a_full_redis_delays_a_study_and_no_more(home: Installation) -> None:
    study = begun(home)
    with home.redis.client() as client:
        client.config_set("maxmemory", "1mb")  # less than an empty server takes, so every write is refused
        pass_time(2 * LEASE_S)
        client.config_set("maxmemory", "0")
    finish(study)


def test_a_study_cannot_be_published_to_a_full_redis_and_later_can(home: Installation) -> None:
    from lines_study import newest_workspace, write_spec

    spec = write_spec(home.folder)
    with home.redis.client() as client:
        client.config_set("maxmemory", "1mb")
        refused = home.merlin("run", spec, "--vars", *VARIABLES, code=None)
        client.config_set("maxmemory", "0")
    assert refused.returncode == 1
    assert "memory" in refused.stderr and "Traceback" not in refused.stderr, refused.stderr
    workspace = newest_workspace(home.folder)
    home.merlin("restart", workspace)
    home.replace_workers(spec, 1)
    finish(LinesStudy(home, spec, workspace))


@pytest.fixture
def behind_rabbit(tmp_path: Path, any_rabbit: RabbitServer, own_redis: RedisServer) -> Iterator[Installation]:
    with installation(tmp_path, any_rabbit, own_redis) as made:
        yield made


def test_rabbitmq_may_lose_every_message(behind_rabbit: Installation, any_rabbit: RabbitServer) -> None:
    home = behind_rabbit
    study = LinesStudy.publish(home, *VARIABLES)
    queue = home.config().queue_name("writes")
    with any_rabbit.connection() as connection, connection.channel() as channel:
        assert channel.queue_purge(queue) >= 1
    home.replace_workers(study.spec, 2)
    finish(study)


def test_redis_may_crash_behind_rabbitmq(behind_rabbit: Installation) -> None:
    home = behind_rabbit
    study = begun(home)
    home.redis.kill9()
    home.redis.start_again()
    finish(study)


def test_workers_that_start_before_their_server_wait_for_it(home: Installation) -> None:
    study = LinesStudy.publish(home, *VARIABLES)
    worker = home.start_worker(study.spec)
    home.workers.remove(worker)
    worker.terminate()
    home.redis.kill9()
    from installation import Worker

    home.workers.append(Worker("early", worker.command, home.folder, home.env))
    wait_until(lambda: home.workers[0].log.stat().st_size > 0, study.show)
    pass_time(1.0)
    home.redis.start_again()
    finish(study)
