"""Connections to Redis, and the translation of redis-py's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from merlin.config.reach import check_endpoint, explain
from merlin.config.redis_library import load_redis
from merlin.errors import ExecutionError

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Config, Endpoint

CONNECT_S = 1.5
MAX_CONNECTIONS = 10_000  # of one process: it needs one for each study that it owns
ANSWER_S = 10.0  # for one command; a server that takes longer counts as unreachable


def redis_client(config: Config) -> Redis:
    """A client of the backend that has answered. Raises ExecutionError if it does not within `ANSWER_S`."""
    reach = check_endpoint(config.backend, ANSWER_S)
    if not reach.ok:
        raise ExecutionError(f"{reach.detail}\n  {reach.hint}" if reach.hint else reach.detail)
    return make_client(config.backend)


def make_client(endpoint: Endpoint) -> Redis:
    """A client that has not connected yet; threads may share it."""
    load_redis()
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
        encoding_errors="surrogateescape",  # foreign data that is not UTF-8 must not raise an error
    )


@contextmanager
def redis_errors(endpoint: Endpoint) -> Iterator[None]:
    """Translate errors of redis-py. The messages contain no secret."""
    import redis

    try:
        yield
    except (redis.RedisError, OSError) as error:
        raise unusable(error, endpoint) from None


def unusable(error: Exception, endpoint: Endpoint) -> ExecutionError:
    """The error to raise for an exception of a client library. It contains no secret."""
    return ExecutionError("\n  ".join(filter(None, explain(error, endpoint))))


def server_time(client: Redis) -> float:
    """Seconds since the epoch on the server's clock."""
    seconds, micros = client.time()
    return float(seconds) + float(micros) / 1e6
