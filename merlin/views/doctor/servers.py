"""Broker and backend as `merlin doctor` sees them: reach, rights, clock, memory, persistence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from merlin.base.text import size
from merlin.config.model import Config, Endpoint
from merlin.config.reach import Reach, check_endpoint, is_loopback
from merlin.errors import ExecutionError
from merlin.execution.distributed.connect import redis_client, redis_errors, server_time
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.views.doctor.finding import Finding, broken_if, warning_if
from merlin.views.doctor.machine import numbers
from merlin.views.doctor.workers import examine_queues, examine_workers

if TYPE_CHECKING:
    from redis import Redis

MAX_SKEW_S = 5.0  # leases follow the server's clock, so a skew only shifts the times that people read
MIN_FREE_SHARE = 0.1  # of Redis' memory limit
SLOW_MS = 50.0  # a round trip beyond it makes small tasks slow


def examine_servers(config: Config, *, has_key: bool) -> Iterator[Finding]:
    """The servers, and what they know of workers and studies if there is a key to talk to these."""
    broker = check_endpoint(config.broker)
    yield judge_reach("broker", config.broker, broker)
    backend = broker if config.backend == config.broker else check_endpoint(config.backend)
    yield judge_reach("backend", config.backend, backend)
    if not backend.ok or not has_key:
        return
    try:
        with redis_client(config) as client:
            yield from _examine_redis(client, config)
            registry = RedisRegistry(client, config)
            studies = registry.studies()
            if broker.ok:
                yield examine_queues(config, studies)
            yield from examine_workers(registry, studies)
    except ExecutionError as error:
        yield Finding(component="backend", status="broken", detail=str(error))


def judge_reach(component: str, endpoint: Endpoint, reach: Reach) -> Finding:
    """A server that was asked."""
    is_slow = reach.latency_ms is not None and reach.latency_ms > SLOW_MS
    is_plain = endpoint.tls is None and endpoint.kind != "redis+socket" and not is_loopback(endpoint.host)
    hints = [reach.hint] if reach.hint else []
    hints += [f"a round trip takes {reach.latency_ms:.0f} ms; workers should be nearer"] if is_slow else []
    hints += ["the connection is not encrypted (rediss, amqps)"] if reach.ok and is_plain else []
    old = reach.ok and endpoint.is_redis and reach.version and numbers(reach.version) < (6, 2)
    hints += ["Redis 6.2 or newer is needed"] if old else []
    return Finding(
        component=component,
        status="broken" if not reach.ok or old else "warning" if hints else "ok",
        version=f"{endpoint.product} {reach.version}".strip(),
        latency_ms=reach.latency_ms,
        detail=endpoint.safe_url if reach.ok else reach.detail,
        hint="; ".join(hints),
    )


def _examine_redis(client: Redis, config: Config) -> Iterator[Finding]:
    yield _try_rights(client, config)
    with redis_errors(config.backend):
        skew_s = time.time() - server_time(client)
    yield judge_clock(skew_s)
    yield from judge_memory(_allowed(lambda: client.info("memory")))
    settings = _allowed(lambda: client.config_get("save"))
    yield judge_persistence(_allowed(lambda: client.info("persistence")), settings.get("save"))


def _try_rights(client: Redis, config: Config) -> Finding:
    """Write, run a script and delete under our own names."""
    from redis import RedisError

    key = f"merlin:{config.namespace}:doctor"
    try:
        client.set(key, "1", ex=10)
        client.eval("return redis.call('TIME')", 1, key)
        client.delete(key)
    except RedisError as error:
        hint = "the account needs all commands on keys merlin:* and the queues"
        return broken_if(hint, "permission", f"Redis does not let us write or run scripts: {error}")
    return broken_if("", "permission", "keys can be written, scripts can be run")


def _allowed(ask: Callable[[], Any]) -> dict[str, Any]:
    """The answer of Redis; empty where the account may not ask."""
    from redis import RedisError

    try:
        return dict(ask())
    except RedisError:
        return {}


def judge_clock(skew_s: float) -> Finding:
    """`skew_s`: seconds that this machine is ahead of Redis."""
    hint = "work is safe, its leases follow the clock of Redis; only the times shown are off"
    detail = f"this machine is {abs(skew_s):.3f} s {'ahead of' if skew_s >= 0 else 'behind'} Redis"
    return warning_if(hint if abs(skew_s) > MAX_SKEW_S else "", "clock", detail)


def judge_memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Memory limit and eviction, from INFO memory."""
    if not info:
        yield warning_if("ask its owner", "memory", "Redis does not tell")
        return
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    is_full = limit and limit - used < MIN_FREE_SHARE * limit
    hint = "almost full: studies wait while it is full; raise maxmemory" if is_full else ""
    detail = f"{size(used)} used, {f'limit {size(limit)}' if limit else 'no limit'}"
    yield warning_if(hint, "memory", detail)
    evicts = limit and policy != "noeviction"
    hint = "Redis may throw away queues and progress when it is full: set maxmemory-policy noeviction"
    yield broken_if(hint if evicts else "", "eviction", policy)


def judge_persistence(info: Mapping[str, Any], save: str | None) -> Finding:
    """What a restart of Redis would cost, from INFO persistence and the setting `save`."""
    writes = ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
    if failed := [name for name in writes if info.get(name, "ok") != "ok"]:
        detail = f"Redis fails to write to its disk ({', '.join(failed)})"
        return broken_if("is its disk full?", "persistence", detail)
    if info.get("aof_enabled"):
        return warning_if("", "persistence", "append-only file")
    hint = (
        "after a restart of Redis studies are published again from their ledgers, "
        "and running chunks start over; set appendonly yes"
    )
    return warning_if(hint, "persistence", "snapshots" if save else "none")
