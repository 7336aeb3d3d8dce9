"""Connections to Redis, and what the errors of redis-py mean for a user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from merlin.config.reach import check_endpoint, explain
from merlin.errors import ExecutionError

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config, Endpoint

CONNECT_S = 1.5
MAX_CONNECTIONS = 10_000  # of one process: each study that it owns waits for letters on one
ANSWER_S = 10.0  # for one command; a server that takes longer counts as unreachable


def redis_client(config: Config) -> Redis:
    """A client of the backend that has answered. Raises ExecutionError if it does not within `ANSWER_S`."""
    reach = check_endpoint(config.backend, ANSWER_S)
    if not reach.ok:
        raise ExecutionError(f"{reach.detail}\n  {reach.hint}" if reach.hint else reach.detail)
    return make_client(config.backend)


def make_client(endpoint: Endpoint) -> Redis:
    """A client that has not connected yet; threads may share it."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(
        **endpoint.redis_options(),
        retry=Retry(NoBackoff(), 1),  # for a connection that the server closed while it was idle
        socket_connect_timeout=CONNECT_S,
        socket_timeout=ANSWER_S,
        health_check_interval=15,
        max_connections=MAX_CONNECTIONS,
        decode_responses=True,
        encoding_errors="surrogateescape",  # what is no UTF-8 is somebody's mistake, and no reason to stop
    )


@contextmanager
def redis_errors(endpoint: Endpoint) -> Iterator[None]:
    """Translate errors of redis-py; the messages hold no secret."""
    import redis

    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise unusable(error, endpoint) from None


def unusable(error: Exception, endpoint: Endpoint) -> ExecutionError:
    """What to raise for whatever a client library threw; it holds no secret."""
    return ExecutionError("\n  ".join(filter(None, explain(error, endpoint))))


def server_time(client: Redis) -> float:
    """Seconds since the epoch on the server's clock."""
    seconds, micros = client.time()
    return float(seconds) + float(micros) / 1e6
