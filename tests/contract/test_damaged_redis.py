"""Strangers write into Redis: an entry that makes no sense costs itself, a study's keys no other study."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
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
from merlin.execution.distributed.contracts import MAX_LETTERS
from merlin.execution.distributed.redis_backend import RedisBackend
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.registry import RunningChunk, StudyInfo, WorkerInfo
from merlin.execution.distributed.scripts import KEYS, Scripts
from merlin.views.doctor.examine import examine

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


def fresh(config: Config, stranger: Any) -> RedisRegistry:
    """A registry that knows one worker and one study."""
    stranger.flushall()
    registry = RedisRegistry(make_client(config.backend), config)
    registry.beat(GOOD)
    registry.advertise(STUDY)
    return registry


def check_that_all_goes_on(registry: RedisRegistry) -> None:
    """What is good is found, what is new is written, and nothing is raised."""
    assert [w.name for w in registry.workers(all=True)] == [GOOD.name]
    assert registry.num_workers(0.0) >= 1
    assert [s.study_id for s in registry.studies()] == ["s1"]
    registry.count("refused")
    assert registry.counters()["refused"] >= 1
    registry.beat(GOOD)
    registry.send(["celery@good"], "stop")
    commands, _ = registry.receive("celery@good")
    assert [c.op for c in commands] == ["stop"]


class TestOneBadEntry:
    @BOUNDED
    @given(field=st.binary(max_size=20), text=raw, beat=st.floats(allow_nan=False), other=raw, num=raw)
    @example(field=b"\xff\xfe", text=b"\xff", beat=math.inf, other=b"\xff", num=b"\xff")
    @example(field=b"w", text=DEEP, beat=1e18, other=DEEP, num=b"1.5")
    @example(field=b"", text=b"", beat=0.0, other=b"", num=b"\t1")
    @example(field=b"", text=b"", beat=0.0, other=b"", num=b"9" * 19)
    def test_costs_itself(self, config, stranger, field, text, beat, other, num):
        registry = fresh(config, stranger)
        ns = config.namespace
        stranger.hset(names.Keys(ns).workers, field + b"!", text)
        stranger.zadd(names.Keys(ns).beats, {field + b"!": beat})
        stranger.hset(names.Keys(ns).studies, field + b"!", other)
        stranger.hset(names.Keys(ns).counters, "refused", num[:100])
        stranger.hset(names.Keys(ns).counters, field + b"!", num[:100])
        stranger.rpush(names.Keys(ns).inbox("celery@good"), text, other, num)
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
        workers = names.Keys(config.namespace).workers
        data = json.loads(stranger.hget(workers, GOOD.name)) | {"name": "celery@bad"}
        data |= {"running": [running]} if name == "running" else {name: value}
        stranger.hset(workers, "celery@bad", json.dumps(data))
        stranger.zadd(
            names.Keys(config.namespace).beats,
            {"celery@bad": stranger.zscore(names.Keys(config.namespace).beats, GOOD.name)},
        )
        for worker in registry.workers(all=True):
            assert 0 < worker.concurrency <= 100_000
            assert math.isfinite(worker.started)
            assert not {"Cc", "Cs"} & {category(c) for c in f"{worker.name}{worker.host}{worker.queues}"}
            f"{worker}".encode()

    def test_a_sealed_study_under_the_name_of_another_is_left_out(self, config, stranger):
        registry = fresh(config, stranger)
        stranger.hset(
            names.Keys(config.namespace).studies,
            "s2",
            stranger.hget(names.Keys(config.namespace).studies, "s1"),
        )
        stranger.hset(
            names.Keys(config.namespace).studies, "s3", json.dumps(seal({"study_id": "s3"}, config.key))
        )
        check_that_all_goes_on(registry)
        assert len(registry.damage.found) == 2

    @pytest.mark.parametrize("kind", ["string", "list", "zset", "hash", "stream"])
    def test_a_key_of_another_type_is_put_aside(self, config, stranger, kind):
        registry = fresh(config, stranger)
        ns = config.namespace
        inbox = names.Keys(ns).inbox("celery@good")
        for key in (names.Keys(ns).workers, names.Keys(ns).beats, names.Keys(ns).counters, inbox):
            stranger.delete(key)
            write(stranger, key, kind)
        registry.workers()
        registry.receive("celery@good")
        registry.beat(GOOD)
        if kind == "hash":
            stranger.delete(names.Keys(ns).workers)
            registry.beat(GOOD)
        check_that_all_goes_on(registry)
        assert registry.damage.found

    def test_doctor_tells_of_it(self, config, stranger, tmp_path):
        fresh(config, stranger)
        stranger.hset(names.Keys(config.namespace).studies, b"\xff", b"\xfe\x1b[2J")
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


class TestDamagedStudy:
    """Every method answers, or raises ExecutionError; then the study can be ended and opened again."""

    @BOUNDED
    @given(name=st.sampled_from(KEYS), text=raw, kind=st.sampled_from(["field", "all", "string", "list"]))
    @example(name="leases", text=DEEP, kind="all")
    @example(name="offers", text=b"1 {", kind="all")
    @example(name="expiry", text=b"nobody", kind="field")
    @example(name="owner", text=b"\xff", kind="all")
    @example(name="mail", text=b"\xff", kind="field")
    def test_is_an_error_of_the_study(self, config, stranger, name, text, kind):
        stranger.flushall()
        backend = RedisBackend(config, make_client(config.backend), lease_s=60.0)
        for study in ("bad", "good"):
            backend.mailbox(study).open("1")
        mailbox, leases = backend.mailbox("bad"), backend.leases("bad")
        mailbox.open("1")
        mailbox.offer({str(i): "{}" for i in range(6)}, "0")
        for i in range(4):
            leases.take(str(i), "w")
        damage(stranger, Scripts(stranger, config.namespace, "bad").keys[name], text, kind)
        for action in (
            mailbox.offers,
            mailbox.names,
            mailbox.num_held,
            mailbox.letters,
            mailbox.exists,
            mailbox.renew,
            mailbox.expire,
            lambda: leases.renew(["0", "1"]),
            lambda: leases.take("4", "w"),
            lambda: leases.settle("0", "{}"),
            lambda: mailbox.void(["1"]),
            lambda: mailbox.offer({"7": "{}"}, "0"),
            lambda: backend.mailbox("bad").own("1", force=True),
            mailbox.release,
            mailbox.close,
        ):
            with suppress(ExecutionError):
                action()
        with suppress(ExecutionError):
            control._LiveChunks(SimpleNamespace(backend=backend, config=config), "bad", {"a"})
        mailbox.drop()
        assert backend.mailbox("bad").own("1").is_over
        again = backend.mailbox("bad")
        assert again.open("2")
        again.offer({"a": "{}"}, "0")
        assert leases.take("a", "w") == "{}"
        assert backend.mailbox("good").exists()

    def test_one_bad_offer_lease_or_letter_costs_itself(self, config, stranger):
        backend = RedisBackend(config, make_client(config.backend), lease_s=60.0)
        mailbox, leases = backend.mailbox("s"), backend.leases("s")
        mailbox.open("1")
        mailbox.offer({"a": "{}", "b": "{}"}, "0")
        leases.take("a", "w")
        keys = Scripts(stranger, config.namespace, "s").keys
        for text in (b"", b"\xff", b"x {}", b"nan {}", b"inf {}", DEEP):
            stranger.hset(keys["offers"], b"bad" + text[:9], text)
            stranger.hset(keys["leases"], b"worse" + text[:9], text)
            stranger.xadd(keys["mail"], {text[:50]: text})
        stranger.zadd(keys["expiry"], {"bad": 1, b"\xff": 0})
        found = {o.lease: o.worker for o in mailbox.offers()}
        assert {"a": "w", "b": ""}.items() <= found.items()
        assert [letter.lease for letter in mailbox.letters()] == ["a"]
        assert mailbox.damage.found
        mailbox.expire()
        assert leases.settle("a", "{}")
        assert leases.take("b", "w") == "{}"

    def test_letters_of_strangers_do_not_hide_the_next_one(self, config, stranger):
        backend = RedisBackend(config, make_client(config.backend), lease_s=60.0)
        mailbox, leases = backend.mailbox("s"), backend.leases("s")
        mailbox.open("1")
        mailbox.offer({"a": "{}"}, "0")
        for _ in range(MAX_LETTERS + 1):
            stranger.xadd(Scripts(stranger, config.namespace, "s").keys["mail"], {"x": "y"})
        assert mailbox.letters("", 0.01) == []
        leases.take("a", "w")
        assert [letter.lease for letter in mailbox.letters()] == ["a"]


def damage(client: Any, key: str, text: bytes, kind: str) -> None:
    """Write into the key, or put something else in its place."""
    found = client.type(key)
    if found == b"stream" and kind == "field":
        client.xadd(key, {text[:50]: text})
    elif kind in ("string", "list") or found not in (b"hash", b"zset"):
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
