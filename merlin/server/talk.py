"""Asks the private server for its state, sets its users, and tells it to end."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from merlin.config.model import Endpoint
from merlin.config.redis_library import impatient_client

if TYPE_CHECKING:
    import redis

_TIMEOUT_S = 5.0  # a slow disk may hold it up for a while


def info(endpoint: Endpoint) -> dict[str, Any] | None:
    """What Redis says about itself; None if nobody answers there, or somebody else does."""
    answer: list[dict[str, Any]] = []
    with _connected(endpoint) as client:
        answer.append(dict(client.info()))
    return answer[0] if answer else None


def set_users(endpoint: Endpoint, users: Mapping[str, str], *, gone: Collection[str]) -> None:
    """Set the users (name -> SHA-256 of the password) of a running server; another one reads them when it starts."""
    with _connected(endpoint) as client:
        for name, digest in users.items():
            client.acl_setuser(
                name, enabled=True, hashed_passwords=[f"+{digest}"], categories=["+@all"], keys=["*"], channels=["*"],
                reset=True,
            )  # fmt: skip
        for name in gone:
            client.acl_deluser(name)


def shut_down(endpoint: Endpoint) -> None:
    """Ask Redis to end, after it has written the append-only file. The caller has to check whether it ends."""
    import redis

    with _connected(endpoint) as client:
        try:
            client.shutdown()  # with a snapshot
        except redis.TimeoutError:
            pass  # it is shutting down
        except redis.RedisError:  # a full disk; the append-only file has everything
            client.shutdown(nosave=True)


@contextmanager
def _connected(endpoint: Endpoint) -> Iterator[redis.Redis]:
    """A client; an error of Redis or the network ends the block without an exception."""
    client = impatient_client(endpoint, _TIMEOUT_S)
    import redis

    with suppress(redis.RedisError, OSError), closing(client):
        yield client
