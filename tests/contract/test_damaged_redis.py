"""Strangers write into Redis: an entry that makes no sense costs itself, a study's progress no other study."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from effort import repeats
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from servers import RedisServer

from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.config.seal import seal
from merlin.errors import ExecutionError
from merlin.execution.distributed import control, names
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.examine import examine
from merlin.execution.distributed.redis_progress import KEYS, RedisProgress
from merlin.execution.distributed.registry import Registry, RunningChunk, StudyInfo, WorkerInfo
from merlin.study.plan import StepKind
from merlin.study.tasks import ChunkResult, Outcome
from merlin.testing.plans import every, plan, same, step

BOUNDED = settings(
    max_examples=repeats(50, 3000),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
STUDY = StudyInfo(study_id="s1", name="n", workspace="/w", plan="p", queues=["q"], session="1", published=1.0)
RUNNING = RunningChunk(study="s1", instance="sim", lo=0, hi=2, since=1.0)
GOOD = WorkerInfo(
    name="celery@good",
    host="h",
    pid=1,
    queues=["q"],
    concurrency=2,
    started=1.0,
    version="1",
    running=[RUNNING],
)
DEEP = b"[" * 200_000

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20)
values = st.recursive(scalars, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=6)
raw = (
    st.binary(max_size=40)
    | values.map(lambda value: json.dumps(value).encode())
    | st.sampled_from([DEEP, b"9" * 5000, b"", b"null", b'"\\ud800"'])
)
worker_fields = (
    "name",
    "host",
    "pid",
    "queues",
    "concurrency",
    "started",
    "version",
    "is_stopping",
    "running",
    "x",
)


@pytest.fixture
def config(any_redis: RedisServer, tmp_path: Path) -> Config:
    found = find_config({"MERLIN_BROKER_URL": any_redis.url, "HOME": str(tmp_path)})
    assert found is not None
    return found


@pytest.fixture
def stranger(any_redis: RedisServer) -> Iterator[Any]:
    with any_redis.client(decode_responses=False) as client:
        yield client


def fresh(config: Config, stranger: Any) -> Registry:
    """A registry that knows one worker and one study."""
    stranger.flushall()
    registry = Registry(make_client(config.backend), config)
    registry.beat(GOOD)
    registry.advertise(STUDY)
    return registry


def check_that_all_goes_on(registry: Registry) -> None:
    """What is good is found, what is new is written, and nothing is raised."""
    assert [w.name for w in registry.workers(all=True)] == [GOOD.name]
    assert registry.num_slots() == GOOD.concurrency
    assert [s.study_id for s in registry.studies()] == ["s1"]
    registry.count("refused")
    assert registry.counters()["refused"] >= 1
    registry.beat(GOOD)
    registry.send(["celery@good"], "stop")
    commands, _ = registry.receive("celery@good")
    assert [c["op"] for c in commands] == ["stop"]


class TestOneBadEntry:
    @BOUNDED
    @given(field=st.binary(max_size=20), text=raw, beat=st.floats(allow_nan=False), other=raw, num=raw)
    @example(field=b"\xff\xfe", text=b"\xff", beat=math.inf, other=b"\xff", num=b"\xff")
    @example(field=b"w", text=DEEP, beat=1e18, other=DEEP, num=b"1.5")
    def test_costs_itself(self, config, stranger, field, text, beat, other, num):
        registry = fresh(config, stranger)
        ns = config.namespace
        stranger.hset(names.workers_key(ns), field + b"!", text)
        stranger.zadd(names.beats_key(ns), {field + b"!": beat})
        stranger.hset(names.studies_key(ns), field + b"!", other)
        stranger.hset(names.counters_key(ns), "refused", num[:100])
        stranger.hset(names.counters_key(ns), field + b"!", num[:100])
        stranger.rpush(names.inbox_key(ns, "celery@good"), text, other, num)
        assert registry.receive("celery@good") == ([], 3)
        registry.workers()
        with suppress(KeyError):
            registry.count("refused", -registry.counters()["refused"])
        check_that_all_goes_on(registry)

    @BOUNDED
    @given(name=st.sampled_from(worker_fields), value=values, running=values)
    @example(name="concurrency", value=10**400, running=[])
    @example(name="started", value=math.nan, running=[])
    @example(name="host", value="\x1b[2J", running=[])
    @example(name="host", value="\ud800", running=[])
    def test_of_a_worker_with_one_wrong_field(self, config, stranger, name, value, running):
        registry = fresh(config, stranger)
        workers = names.workers_key(config.namespace)
        data = json.loads(stranger.hget(workers, GOOD.name)) | {"name": "celery@bad"}
        data |= {"running": [running]} if name == "running" else {name: value}
        stranger.hset(workers, "celery@bad", json.dumps(data))
        stranger.zadd(
            names.beats_key(config.namespace),
            {"celery@bad": stranger.zscore(names.beats_key(config.namespace), GOOD.name)},
        )
        for worker in registry.workers(all=True):
            assert 0 < worker.concurrency <= 100_000
            assert math.isfinite(worker.started)
            assert not {"Cc", "Cs"} & {category(c) for c in f"{worker.name}{worker.host}{worker.queues}"}
            f"{worker}".encode()

    def test_a_sealed_study_under_the_name_of_another_is_left_out(self, config, stranger):
        registry = fresh(config, stranger)
        stranger.hset(
            names.studies_key(config.namespace),
            "s2",
            stranger.hget(names.studies_key(config.namespace), "s1"),
        )
        stranger.hset(
            names.studies_key(config.namespace), "s3", json.dumps(seal({"study_id": "s3"}, config.key))
        )
        check_that_all_goes_on(registry)
        assert len(registry.damage.found) == 2

    def test_a_lock_without_an_end_keeps_nobody_from_sweeping(self, config, stranger):
        registry = fresh(config, stranger)
        for value in ({}, {"ex": 10**6}):
            stranger.set(names.sweep_key(config.namespace, "s1"), "1", **value)
            assert not registry.sweep_lock("s1", 1.0)
            assert registry.sweep_lock("s1", 1.0)
            assert not registry.sweep_lock("s1", 1.0)
            stranger.delete(names.sweep_key(config.namespace, "s1"))

    @pytest.mark.parametrize("kind", ["string", "list", "zset", "hash", "stream"])
    def test_a_key_of_another_type_is_put_aside(self, config, stranger, kind):
        registry = fresh(config, stranger)
        ns = config.namespace
        inbox = names.inbox_key(ns, "celery@good")
        for key in (names.workers_key(ns), names.beats_key(ns), names.counters_key(ns), inbox):
            stranger.delete(key)
            write(stranger, key, kind)
        registry.workers()
        registry.receive("celery@good")
        registry.beat(GOOD)
        if kind == "hash":
            stranger.delete(names.workers_key(ns))
            registry.beat(GOOD)
        check_that_all_goes_on(registry)
        assert registry.damage.found

    def test_doctor_tells_of_it(self, config, stranger, tmp_path):
        fresh(config, stranger)
        stranger.hset(names.studies_key(config.namespace), b"\xff", b"\xfe\x1b[2J")
        found = {f.component: f for f in examine(lambda: config, tmp_path)}
        assert found["registry"].status == "warning"
        assert "1 entry" in found["registry"].detail
        assert found["registry"].detail.isprintable()
        assert "1 open study" in found["workers"].detail


def write(client: Any, key: str, kind: str) -> None:
    """Something of this type."""
    match kind:
        case "string":
            client.set(key, "1")
        case "list":
            client.rpush(key, "1")
        case "zset":
            client.zadd(key, {"1": 1})
        case "hash":
            client.hset(key, "1", "1")
        case "stream":
            client.xadd(key, {"1": "1"})


PLAN = plan(step("a", 6), step("b", 6, same("a")), step("c", 1, every("b"), kind=StepKind.FUNCTION))


class TestDamagedProgress:
    """Every method answers, or raises ExecutionError; then the study can be dropped and opened again."""

    @BOUNDED
    @given(name=st.sampled_from(KEYS), text=raw, kind=st.sampled_from(["field", "all", "string", "list"]))
    @example(name="leases", text=DEEP, kind="all")
    @example(name="expiry", text=b"nobody", kind="field")
    @example(name="meta", text=b"\xff", kind="all")
    def test_is_an_error_of_the_study(self, any_redis, config, stranger, name, text, kind):
        stranger.flushall()
        progress = RedisProgress(make_client(config.backend), config.namespace, PLAN)
        progress.open({}, session="1", first_attempt=1)
        chunk = progress.take(worker="w")
        assert chunk is not None
        progress.finished(ChunkResult(chunk=chunk, runs=((chunk.lo, chunk.lo + 1, int(Outcome.FAILED)),)))
        chunk = progress.take(worker="w")
        assert chunk is not None
        damage(stranger, progress.keys[KEYS.index(name)], text, kind)
        for action in (
            progress.state,
            progress.counts,
            progress.verdicts,
            progress.holdings,
            progress.counters,
            progress.next_wakeup,
            lambda: (progress.epoch, progress.session, progress.stop_reason, progress.is_complete),
            lambda: progress.beat([chunk]),
            lambda: progress.expired(worker="w"),
            lambda: progress.tickets(4, 2),
            lambda: progress.reissue(0.0),
            lambda: progress.take(worker="w"),
            lambda: progress.take_among(["a", "b"], worker="w"),
            lambda: progress.give_back(chunk),
            lambda: progress.fail(["a"], "no"),
            lambda: progress.written(progress.verdicts()),
        ):
            with suppress(ExecutionError):
                action()
        control._held(progress, [], {"a"})  # so that it can be cancelled
        progress.drop("cancelled")
        again = RedisProgress(make_client(config.backend), config.namespace, PLAN)
        assert again.open({}, session="2", first_attempt=1)
        assert again.counts()["a"].planned == 6
        assert again.take(worker="w") is not None

    def test_an_expired_lease_of_nobody_does_not_stop_takeovers(self, any_redis, config, stranger):
        progress = RedisProgress(make_client(config.backend), config.namespace, PLAN, lease_s=0.0)
        progress.open({}, session="1", first_attempt=1)
        chunk = progress.take(worker="w")
        leases, expiry = (progress.keys[KEYS.index(name)] for name in ("leases", "expiry"))
        stranger.hset(leases, "bad", DEEP)
        stranger.zadd(expiry, {"bad": -1, b"\xff": 0, "none": -2})
        assert [h.chunk for h in progress.holdings()] == [chunk]
        (taken,) = progress.expired(worker="v")
        assert chunk is not None
        assert (taken.instance, taken.lo, taken.hi) == (chunk.instance, chunk.lo, chunk.hi)


def damage(client: Any, key: str, text: bytes, kind: str) -> None:
    """Write into the key, or put something else in its place."""
    found = client.type(key)
    if kind in ("string", "list") or found not in (b"hash", b"zset"):
        client.delete(key)
        client.set(key, text) if kind == "string" else client.rpush(key, text)
    elif found == b"hash":
        fields = client.hkeys(key) if kind == "all" else [text[:50]]
        client.hset(key, mapping=dict.fromkeys(fields, text))
    else:
        scores = [score for _, score in client.zrange(key, 0, -1, withscores=True)] if kind == "all" else [0]
        if kind == "all":
            client.delete(key)
        client.zadd(key, {text[:50] + str(i).encode(): score for i, score in enumerate(scores)})
