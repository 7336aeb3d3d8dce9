"""Asking the private server how it is, and telling it to end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from merlin.config.model import Endpoint

if TYPE_CHECKING:
    import redis

_TIMEOUT_S = 5.0  # a slow disk may hold it up for a while


def info(endpoint: Endpoint) -> dict[str, Any] | None:
    """What Redis says about itself; None if nobody answers there, or somebody else does."""
    import redis

    client = _client(endpoint)
    try:
        return dict(client.info())
    except (redis.RedisError, OSError):
        return None
    finally:
        client.close()


def set_users(endpoint: Endpoint, users: Mapping[str, str], *, gone: Collection[str]) -> None:
    """Tell a server its users (name -> SHA-256 of the password) at once, if it runs; else it reads them later."""
    import redis

    client = _client(endpoint)
    with suppress(redis.RedisError, OSError):
        for name, digest in users.items():
            client.acl_setuser(
                name, enabled=True, hashed_passwords=[f"+{digest}"], categories=["+@all"], keys=["*"], channels=["*"],
                reset=True,
            )  # fmt: skip
        for name in gone:
            client.acl_deluser(name)
    client.close()


def shut_down(endpoint: Endpoint) -> None:
    """Ask Redis to end; the append-only file is written first. Whether it does is for the caller to see."""
    import redis

    client = _client(endpoint)
    with suppress(redis.RedisError, OSError):
        try:
            client.shutdown()  # with a snapshot
        except redis.TimeoutError:
            pass  # it is at it
        except redis.RedisError:  # a full disk; the append-only file has everything
            client.shutdown(nosave=True)
    client.close()


def _client(endpoint: Endpoint) -> redis.Redis:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis(
        **endpoint.redis_options(),
        socket_connect_timeout=_TIMEOUT_S,
        socket_timeout=_TIMEOUT_S,
        retry=Retry(NoBackoff(), 0),
        decode_responses=True,
    )
