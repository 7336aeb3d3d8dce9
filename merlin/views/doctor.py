"""Looks at everything that a study on workers needs: what `merlin doctor` tells.

The judges are pure; `examine` asks the servers and the file system, in a few seconds at most.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from merlin import __version__
from merlin.errors import ConfigError, ExecutionError, command_line

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config, Endpoint
    from merlin.config.reach import Reach
    from merlin.execution.distributed.redis_registry import RedisRegistry
    from merlin.execution.distributed.registry import StudyInfo, WorkerInfo

Status = Literal["ok", "warning", "broken", "absent"]

PACKAGES = {"celery": (5, 4), "redis": (5, 0), "kombu": (5, 3)}  # the least versions
MAX_SKEW_S = 5.0  # leases follow the server's clock, so a skew only shifts the times that people read
MIN_FREE_BYTES = 1_000_000_000
MIN_FREE_SHARE = 0.1  # of Redis' memory limit
SLOW_MS = 50.0  # a round trip beyond it makes small tasks slow
SLOW_SYNC_S = 1.0
MAX_NAMES = 20  # of workers; anybody who can write into Redis can add some


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One component: is it there, of which version, how fast, and is anything wrong?

    status: ok, warning (it works, but read the hint), broken, or absent (not needed for what is configured).
    """

    component: str
    status: Status
    detail: str
    hint: str = ""
    version: str = ""
    latency_ms: float | None = None


def examine(find: Callable[[], Config | None], directory: Path) -> Iterator[Finding]:
    """Every finding, one by one; `directory` is where workspaces shall go."""
    yield Finding(component="merlin", status="ok", version=__version__, detail=str(Path(__file__).parents[2]))
    for name, least in PACKAGES.items():
        yield judge_package(name, _version(name), least)
    yield examine_directory(directory)
    try:
        config = find()
    except ConfigError as error:
        yield Finding(
            component="configuration",
            status="broken",
            detail=str(error),
            hint="merlin config check shows more",
        )
        return
    yield judge_config(config)
    if config is None:
        return
    key = examine_key(config)
    yield key
    yield from _examine_servers(config, has_key=key.status != "broken")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def judge_package(name: str, found: str | None, least: tuple[int, ...]) -> Finding:
    """A Python package."""
    wanted = ".".join(map(str, least))
    hint = f"install it: python -m pip install '{name}>={wanted}'"
    if found is None:
        return Finding(component=name, status="broken", detail="the package is not installed", hint=hint)
    is_enough = numbers(found) >= least
    return Finding(
        component=name,
        status="ok" if is_enough else "broken",
        version=found,
        detail="installed" if is_enough else f"too old, {wanted} is needed",
        hint="" if is_enough else hint,
    )


def numbers(text: str) -> tuple[int, ...]:
    """The version "5.4.0rc1" as (5, 4, 0)."""
    match = re.match(r"\d+(\.\d+)*", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def judge_config(config: Config | None) -> Finding:
    """Where the configuration comes from."""
    if config is None:
        return Finding(
            component="configuration",
            status="absent",
            detail="no broker is configured: studies run on this machine",
            hint="for workers elsewhere: merlin server start, or merlin config create",
        )
    warnings = "; ".join(warning.render() for warning in config.warnings)
    where = f"{config.path} ({config.origin})" if config.path else config.origin
    return Finding(
        component="configuration", status="warning" if warnings else "ok", detail=where, hint=warnings
    )


def examine_key(config: Config) -> Finding:
    """The file with the user's key; made if there is none."""
    try:
        _ = config.key
    except ConfigError as error:
        return Finding(component="key", status="broken", detail=str(error))
    mode = config.key_path.stat().st_mode & 0o777
    return Finding(component="key", status="ok", detail=f"{config.key_path}, mode {mode:04o}")


def examine_directory(path: Path) -> Finding:
    """Whether workspaces can be written, locked and synced there, and how much is free."""
    try:
        seconds = _try_writing(path)
        free = shutil.disk_usage(path).free
    except OSError as error:
        return Finding(
            component="directory",
            status="broken",
            detail=f"{path} cannot be written: {error.strerror}",
            hint="choose another for the variable OUTPUT_PATH",
        )
    return judge_directory(path, free, seconds)


def _try_writing(path: Path) -> float:
    """Write, lock, sync and remove a small file; the seconds that it took."""
    import fcntl
    import tempfile

    begin = time.perf_counter()
    with tempfile.NamedTemporaryFile(dir=path, prefix=".merlin-doctor-") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        file.write(b"x" * 4096)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - begin


def judge_directory(path: Path, free_bytes: int, sync_s: float) -> Finding:
    """A directory that can be written."""
    hint = ""
    if free_bytes < MIN_FREE_BYTES:
        hint = f"only {free_bytes / 1e6:.0f} MB are free"
    elif sync_s > SLOW_SYNC_S:
        hint = f"writing a small file takes {sync_s:.1f} s; every worker does that every few seconds"
    return Finding(
        component="directory",
        status="warning" if hint else "ok",
        detail=f"{path} can be written and locked, {free_bytes / 1e9:.1f} GB are free",
        hint=hint,
        latency_ms=1000 * sync_s,
    )


# ---------------------------------------------------------------------- servers


def _examine_servers(config: Config, *, has_key: bool) -> Iterator[Finding]:
    from merlin.config.reach import check_endpoint
    from merlin.execution.distributed.connect import redis_client
    from merlin.execution.distributed.redis_registry import RedisRegistry

    broker = check_endpoint(config.broker)
    yield judge_reach("broker", config.broker, broker)
    backend = broker if config.backend == config.broker else check_endpoint(config.backend)
    yield judge_reach("backend", config.backend, backend)
    if not backend.ok or not has_key:
        return
    try:
        yield from _examine_redis(config)
        with redis_client(config) as client:
            registry = RedisRegistry(client, config)
            studies = registry.studies()
            if broker.ok:
                yield _examine_queues(config, studies)
            yield from _examine_workers(registry, studies)
    except ExecutionError as error:
        yield Finding(component="backend", status="broken", detail=str(error))


def judge_reach(component: str, endpoint: Endpoint, reach: Reach) -> Finding:
    """A server that was asked."""
    from merlin.config.reach import is_loopback

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


def _examine_redis(config: Config) -> Iterator[Finding]:
    from merlin.execution.distributed.connect import redis_client, redis_errors, server_time

    with redis_client(config) as client:
        yield _try_rights(client, config)
        with redis_errors(config.backend):
            skew_s = time.time() - server_time(client)
        yield judge_clock(skew_s)
        yield from judge_memory(_info(client, "memory"))
        persistence = _info(client, "persistence")
        yield judge_persistence(persistence, _setting(client, "save"))


def _try_rights(client: Redis, config: Config) -> Finding:
    """Write, run a script and delete under our own names."""
    from redis import RedisError

    key = f"merlin:{config.namespace}:doctor"
    try:
        client.set(key, "1", ex=10)
        client.eval("return redis.call('TIME')", 1, key)
        client.delete(key)
    except RedisError as error:
        return Finding(
            component="permission",
            status="broken",
            detail=f"Redis does not let us write or run scripts: {error}",
            hint="the account needs all commands on keys merlin:* and the queues",
        )
    return Finding(component="permission", status="ok", detail="keys can be written, scripts can be run")


def _info(client: Redis, section: str) -> Mapping[str, Any]:
    """A section of INFO; empty where the account may not ask."""
    from redis import RedisError

    try:
        found: Any = client.info(section)
    except RedisError:
        return {}
    return dict(found)


def _setting(client: Redis, name: str) -> str | None:
    """A setting of the server; None where the account may not ask."""
    from redis import RedisError

    try:
        found: Any = client.config_get(name)
    except RedisError:
        return None
    return str(found.get(name, ""))


def judge_clock(skew_s: float) -> Finding:
    """`skew_s`: seconds that this machine is ahead of Redis."""
    is_off = abs(skew_s) > MAX_SKEW_S
    return Finding(
        component="clock",
        status="warning" if is_off else "ok",
        detail=f"this machine is {abs(skew_s):.3f} s {'ahead of' if skew_s >= 0 else 'behind'} Redis",
        hint="work is safe, its leases follow the clock of Redis; only the times shown are off"
        if is_off
        else "",
    )


def judge_memory(info: Mapping[str, Any]) -> Iterator[Finding]:
    """Memory limit and eviction, from INFO memory."""
    if not info:
        yield Finding(
            component="memory", status="warning", detail="Redis does not tell", hint="ask its owner"
        )
        return
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    policy = str(info.get("maxmemory_policy", "noeviction"))
    yield Finding(
        component="memory",
        status="warning" if limit and limit - used < MIN_FREE_SHARE * limit else "ok",
        detail=f"{used / 1e6:.1f} MB used, {f'limit {limit / 1e6:.0f} MB' if limit else 'no limit'}",
        hint="almost full: studies wait while it is full; raise maxmemory"
        if limit and limit - used < MIN_FREE_SHARE * limit
        else "",
    )
    evicts = bool(limit) and policy != "noeviction"
    yield Finding(
        component="eviction",
        status="broken" if evicts else "ok",
        detail=policy,
        hint="Redis may throw away queues and progress when it is full: set maxmemory-policy noeviction"
        if evicts
        else "",
    )


def judge_persistence(info: Mapping[str, Any], save: str | None) -> Finding:
    """What a restart of Redis would cost, from INFO persistence and the setting `save`."""
    is_appending, saves = bool(info.get("aof_enabled")), bool(save)
    failed = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        return Finding(
            component="persistence",
            status="broken",
            detail=f"Redis fails to write to its disk ({', '.join(failed)})",
            hint="is its disk full?",
        )
    detail = "append-only file" if is_appending else "snapshots" if saves else "none"
    return Finding(
        component="persistence",
        status="ok" if is_appending else "warning",
        detail=detail,
        hint=""
        if is_appending
        else "after a restart of Redis studies are published again from their ledgers, "
        "and running chunks start over; set appendonly yes",
    )


def _examine_queues(config: Config, studies: Sequence[StudyInfo]) -> Finding:
    """Whether the broker lets us look at a queue, and those of open studies can be used."""
    from merlin.execution.distributed.queues import check_properties, queue_depths

    try:
        queue_depths(config, ["merlin"])
        check_properties(config, sorted({"merlin"}.union(*(study.queues for study in studies))))
    except ExecutionError as error:
        detail, _, hint = str(error).partition("\n")
        return Finding(component="queues", status="broken", detail=detail, hint=hint.strip())
    return Finding(component="queues", status="ok", detail=f"named {config.queue_name('…')}")


def _examine_workers(registry: RedisRegistry, studies: Sequence[StudyInfo]) -> Iterator[Finding]:
    workers, counters = registry.workers(all=True), registry.counters()
    yield judge_workers(workers, [study.workspace for study in studies])
    if damaged := registry.damage.found:
        yield judge_damage(damaged)
    refused = counters.get("refused", 0)
    yield Finding(
        component="messages",
        status="warning" if refused else "ok",
        detail=f"{refused} refused",
        hint="messages that were not sealed with your key: somebody else writes to your queues"
        if refused
        else "",
    )


def judge_damage(found: Mapping[str, str]) -> Finding:
    """Entries of the registry that cannot be used: where -> why."""
    shown = "; ".join(f"{where[:100]!a}: {why[:100]!a}" for where, why in list(found.items())[:3])
    return Finding(
        component="registry",
        status="warning",
        detail=f"{len(found)} {'entry' if len(found) == 1 else 'entries'} left out: {shown}",
        hint="somebody else writes under your names in Redis, or a worker is of another version of Merlin",
    )


def judge_workers(workers: list[WorkerInfo], studies: Sequence[str]) -> Finding:
    """The live workers, and those that fell silent within the hour; `studies` are the workspaces of open ones."""
    alive = [worker for worker in workers if worker.is_alive]
    hosts = {worker.host for worker in alive}
    other = sorted({worker.version for worker in alive} - {__version__})
    hints = []
    if other:
        versions = ", ".join(other[:3]) + " …" * (len(other) > 3)
        hints.append(f"workers run Merlin {versions}, and this is {__version__}; restart them")
    if studies and not alive:
        start = "; ".join(command_line("run-workers", workspace) for workspace in studies[:3])
        hints.append(f"studies wait, and no worker is alive; start some: {start}")
    if silent := [worker.name.removeprefix("celery@") for worker in workers if not worker.is_alive]:
        more = f" and {len(silent) - MAX_NAMES:,} more" if len(silent) > MAX_NAMES else ""
        hints.append(f"silent: {', '.join(silent[:MAX_NAMES])}{more}; their work waits for other workers")
    return Finding(
        component="workers",
        status="warning" if hints else "ok" if alive else "absent",
        detail=f"{len(alive)} alive on {len(hosts)} {'host' if len(hosts) == 1 else 'hosts'}, "
        f"{len(studies)} open {'study' if len(studies) == 1 else 'studies'}",
        hint="; ".join(hints),
    )
