"""The configured servers: whether they answer, and who works for this user."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from merlin.config.model import Config, Endpoint
from merlin.config.reach import TIMEOUT_S, Reach, check_endpoint
from merlin.errors import ExecutionError
from merlin.execution.distributed.connect import redis_client
from merlin.execution.distributed.redis_registry import RedisRegistry

PATIENCE_S = 10.0  # for a server that has to answer; a server that is only inspected gets `TIMEOUT_S`


def require_reachable(config: Config, *, hint: str = "") -> list[str]:
    """Warnings about the servers of `config`.

    Raises ExecutionError within `PATIENCE_S` if one of them cannot be used: the message names the server, says what
    is wrong and what to do; `hint` is added to it.
    """
    reached = [reach for _, reach in reach_all(config, PATIENCE_S)]
    problems = [r.detail + (f"\n  {r.hint}" if r.hint else "") for r in reached if not r.ok]
    if problems:
        where = f"It is configured by {config.path or config.origin}; merlin doctor looks closer."
        raise ExecutionError("\n  ".join([*problems, where, *([hint] if hint else [])]))
    return [f"{reach.detail}, but {reach.hint}" for reach in reached if reach.hint]


def reach_all(config: Config, timeout_s: float = TIMEOUT_S) -> list[tuple[Endpoint, Reach]]:
    """The broker and the backend, asked at the same time; one entry if they are the same server."""
    endpoints = [config.broker] if config.broker == config.backend else [config.broker, config.backend]
    with ThreadPoolExecutor(len(endpoints)) as pool:
        reached = pool.map(lambda endpoint: check_endpoint(endpoint, timeout_s), endpoints)
        return list(zip(endpoints, reached, strict=True))


def open_registry(config: Config) -> RedisRegistry:
    """The register of this user's workers and studies. Raises ExecutionError if Redis does not answer."""
    return RedisRegistry(redis_client(config), config)
