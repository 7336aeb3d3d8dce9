"""Servers for every test that wants one; see servers.py for what they can do.

`any_redis` and `any_slurm` are shared by the tests of one process, and empty at the start of each test; `any_rabbit` is
shared by all tests. Do not stop these. `own_redis` and `own_slurm` are the test's own, to be killed and paused at will.
"""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from commands import share_place
from memory_files import files_in_memory
from servers import (
    Authority,
    RedisServer,
    SharedRabbit,
    shared_rabbit,
    throwaway_ca,
)
from slurm import SlurmCluster, slurm_cluster


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a process of pytest-xdist has it
        config.add_cleanup(files_in_memory())
        config.add_cleanup(share_place())


def pytest_unconfigure() -> None:
    """What lives until the end is no garbage, and pytest is about to look for that five times."""
    gc.freeze()
    atexit.register(gc.unfreeze)  # modules of C complain about what is not freed


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Modules that are imported leave no garbage, and looking for it takes a fifth of the time.

    Nor are they looked at later; those that tests import are, but seldom.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 50)
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No configuration or key of whoever runs the tests, and Ctrl-C as it is at a terminal.

    A job started in the background of a script ignores SIGINT, and what it starts would, too.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name in [n for n in os.environ if n.startswith("MERLIN_") and not n.startswith("MERLIN_SOAK_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("MERLIN_NO_PACING", "1")  # the cores are in use by other tests
        before = signal.getsignal(signal.SIGINT)
        if before is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="module")
def garbage_of_others() -> None:
    """A test that calls `gc.collect` looks at its module's objects only: all others take half a second each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals_of_its_own() -> Iterator[None]:
    """What a command that a test calls in this process does with signals is not for the next test."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _imports_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A test's own modules, such as a user's `model.py`, are not found by the next test that has one of that name."""
    path, known = list(sys.path), len(sys.modules)
    yield
    sys.path[:] = path
    if len(sys.modules) != known:
        written = f"{tmp_path_factory.getbasetemp()}{os.sep}"
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(written):
                del sys.modules[name]


@pytest.fixture(scope="session")
def _shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with RedisServer(tmp_path_factory.mktemp("redis"), appendonly=False) as server:
        yield server


@pytest.fixture
def any_redis(_shared_redis: RedisServer) -> RedisServer:
    """A Redis server without persistence, empty."""
    with _shared_redis.client() as client:
        client.flushall()
        client.script_flush()
    return _shared_redis


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server with an append-only file."""
    with RedisServer(tmp_path) as server:
        yield server


@pytest.fixture
def any_rabbit() -> SharedRabbit:
    """A RabbitMQ server; queues of other tests may be in it, under other names."""
    return shared_rabbit()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """A certificate authority, and a certificate for 127.0.0.1 and localhost."""
    return throwaway_ca(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="session")
def _shared_slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster(gpus=2) as cluster:
        yield cluster


@pytest.fixture
def any_slurm(_shared_slurm: SlurmCluster) -> SlurmCluster:
    """Three idle nodes of two cores and two GPUs each, which are no devices."""
    _shared_slurm.empty()
    return _shared_slurm


@pytest.fixture
def own_slurm() -> Iterator[SlurmCluster]:
    with slurm_cluster() as cluster:
        yield cluster
