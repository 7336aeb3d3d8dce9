"""The disk runs full, and a clock is wrong."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from installation import LEASE_S, installation
from lines_study import LinesStudy
from servers import RedisServer, unavailable
from small_disk import small_disk

pytestmark = pytest.mark.slow


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB. Only root can make one, and not in every container: skipped elsewhere."""
    with small_disk(tmp_path / "small", 16) as is_mounted:
        if not is_mounted:
            pytest.skip("a small file system cannot be mounted")
        yield tmp_path / "small"


def fill(folder: Path) -> Path:
    """Write until nothing more fits."""
    path = folder / "filler"
    with path.open("ab", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    file.write(b"x" * size)
    return path


def is_full(folder: Path) -> bool:
    try:
        (folder / "one more").write_bytes(b"x" * 5000)
    except OSError as error:
        assert error.errno == errno.ENOSPC
        return True
    return False


def test_a_full_disk_costs_time_and_nothing_else(tmp_path: Path, own_redis: RedisServer, disk: Path) -> None:
    with installation(tmp_path, own_redis) as home:
        variables = ["N=100", "SLEEP=0.02", "SHARD=50", f"OUTPUT_PATH={disk}", "HOLD=99"]
        study = LinesStudy.publish(home, *variables, held=True)
        home.replace_workers(study.spec, 2)
        study.wait_for(40)
        filler = fill(disk)
        while not is_full(disk):  # the workers remove files, too
            filler = fill(disk)
        time.sleep(2 * LEASE_S)  # being full for so long is the fault
        before = study.num_ended
        assert before < study.planned
        filler.unlink()
        (disk / "one more").unlink(missing_ok=True)
        study.let_go()
        home.restart(study.workspace.path, "--failed")  # tasks that could not write have failed
        home.replace_workers(study.spec, 2)
        study.wait_for_end()
        study.check(failed_before=True)
        home.stop_workers()


def wrong_clock(hours: int) -> dict[str, str]:
    """Environment variables under which a process and its children have another time of day."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        unavailable("libfaketime is not installed; as root, `make servers` installs it")
    return {"LD_PRELOAD": str(found[0]), "FAKETIME": f"{hours:+d}h", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


@pytest.mark.parametrize("hours", [1, -1])
def test_a_worker_whose_clock_is_an_hour_off_works_like_the_others(
    tmp_path: Path, own_redis: RedisServer, hours: int
) -> None:
    # a lease that is much shorter than an hour, and does not run out because the machine is slow
    with installation(tmp_path, own_redis, lease_s=60.0) as home:
        study = LinesStudy.publish(home, "N=60", "SLEEP=0.02", "SHARD=30")
        home.start_worker(study.spec, **wrong_clock(hours))
        home.start_worker(study.spec)
        study.wait_for_end()
        assert study.check().num_again == 0
        home.stop_workers()


@pytest.mark.parametrize("hours", [1, -1])
def test_a_worker_whose_clock_is_an_hour_off_takes_over_from_the_dead(
    tmp_path: Path, own_redis: RedisServer, hours: int
) -> None:
    with installation(tmp_path, own_redis) as home:
        study = LinesStudy.publish(home, "N=60", "SLEEP=0.02", "SHARD=30")
        home.start_worker(study.spec)
        study.wait_for(40)
        home.start_worker(study.spec, **wrong_clock(hours))
        home.workers.pop(0).kill(whole=True)
        study.wait_for_end()
        study.check()
        home.stop_workers()
