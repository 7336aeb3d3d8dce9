"""Loads redis-py without its optional metrics, which Merlin does not use."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from redis import Redis

    from merlin.config.model import Endpoint

_SDK = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")
_LOADING = threading.Lock()  # two servers are asked at the same time


def load_redis() -> None:
    """Load redis-py, unless it is loaded, without the metrics of OpenTelemetry, which take a third of its time.

    A program that uses OpenTelemetry has loaded it before; then nothing is left out.
    """
    with _LOADING:
        if "redis" in sys.modules:
            return
        absent: dict[str, None] = {} if "opentelemetry" in sys.modules else dict.fromkeys(_SDK)
        sys.modules.update(absent)  # type: ignore[arg-type]  # None is Python's way to say that there is no such module
        try:
            import redis

            assert redis
        finally:
            for name in absent:
                del sys.modules[name]


def impatient_client(endpoint: Endpoint, timeout_s: float) -> Redis:
    """A client that has not connected yet, and gives up at the first error or after `timeout_s` for an answer."""
    load_redis()
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(
        **endpoint.redis_options(),
        socket_connect_timeout=timeout_s,
        socket_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
        encoding_errors="surrogateescape",  # INFO names directories, which may be no text
    )
