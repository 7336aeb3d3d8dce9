"""The queues of the broker: their lengths, their properties, and how to empty them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from merlin.config.model import QUEUE_TAG
from merlin.errors import ExecutionError
from merlin.execution.distributed import names
from merlin.execution.distributed.connect import make_client, redis_errors, unusable

if TYPE_CHECKING:
    from kombu.entity import Queue

    from merlin.config.model import Config

PRIORITY_SEPARATOR = "\x06\x16"  # kombu's, between a Redis queue's name and its priority step
PRIORITY_STEPS = (0, 3, 6, 9)
# RabbitMQ's answer to a declaration of an existing queue with other properties
_INEQUIVALENT = re.compile(r"inequivalent arg '(.*?)' for queue '(.*)' in vhost '(.*?)'")


class QueueInfo(Struct, frozen=True, kw_only=True):
    """One queue of the broker."""

    depth: int  # waiting messages
    consumers: int | None  # as RabbitMQ counts them; None if the broker does not know


def broker_queue(config: Config, name: str) -> Queue:
    """The queue of steps with `task_queue: name`, as we declare it."""
    from kombu.entity import Queue

    arguments = None if config.broker.is_redis else {"x-max-priority": names.MAX_PRIORITY}
    full = config.queue_name(name)
    return Queue(full, routing_key=full, queue_arguments=arguments)


def queue_depths(config: Config, queue_names: Iterable[str]) -> dict[str, QueueInfo]:
    """The waiting messages of these `task_queue` names. A queue that does not exist is empty.

    Raises ExecutionError if the broker cannot be reached.
    """
    return {name: _depth(config, name) for name in queue_names}


def empty_queues(config: Config, queue_names: Iterable[str]) -> list[str]:
    """Those of the queues that hold no message."""
    return [name for name, info in queue_depths(config, queue_names).items() if not info.depth]


def check_properties(config: Config, queue_names: Iterable[str]) -> None:
    """Check the properties of the queues that exist. Queues on Redis have none.

    Raises ExecutionError if one exists with other properties than ours, or the broker cannot be reached.
    """
    if config.broker.is_redis:
        return
    for name in queue_names:
        if _declare_passively(config, config.queue_name(name)) is not None:
            with _channel(config) as channel:
                broker_queue(config, name)(channel).queue_declare()


def other_properties(config: Config, error: Exception) -> ExecutionError | None:
    """The error to raise if `error` means that a queue exists with other properties than ours; else None."""
    from amqp.exceptions import PreconditionFailed

    found = _INEQUIVALENT.search(str(error)) if isinstance(error, PreconditionFailed) else None
    if found is None:
        return None
    what, full, vhost = found.groups()
    delete = shlex.join(["rabbitmqctl", "--vhost", vhost, "delete_queue", full])
    return ExecutionError(
        f"{config.broker.product} at {config.broker.address} has a queue {full} that is not as we declare it ({what}): "
        "somebody else, or another version of Merlin, made it\n"
        f"  If nothing of value is in it, delete it: {delete}\n"
        f"  If not, choose another task_queue than {config.display_queue(full).removeprefix(QUEUE_TAG)}"
    )


def _depth(config: Config, name: str) -> QueueInfo:
    full = config.queue_name(name)
    if config.broker.is_redis:
        return QueueInfo(depth=sum(_redis(config, "llen", full)), consumers=None)
    found = _declare_passively(config, full)
    return QueueInfo(depth=0, consumers=0) if found is None else found


def purge(config: Config, queue_names: Iterable[str]) -> dict[str, int]:
    """Remove every waiting message of this user's queues; returns how many there were.

    Raises ExecutionError if the broker cannot be reached.
    """
    out: dict[str, int] = {}
    for name in queue_names:
        full = config.queue_name(name)
        if config.broker.is_redis:
            out[name] = sum(_redis(config, "llen", full))
            _redis(config, "delete", full)
        else:
            out[name] = 0
            with _channel(config) as channel:
                out[name] = int(channel.queue_purge(full) or 0)
    return out


def redis_list(full: str, priority: int) -> str:
    """The Redis list that holds a queue's messages of one priority."""
    return f"{full}{PRIORITY_SEPARATOR}{priority}" if priority else full


def redis_lists(full: str) -> list[str]:
    """The Redis lists that make up a queue, by priority."""
    return [redis_list(full, step) for step in PRIORITY_STEPS]


def key_prefix(config: Config) -> str:
    """The prefix of all keys of Redis as a broker, from the user's app.yaml; "" if there is none."""
    return str(dict(config.celery.get("broker_transport_options") or {}).get("global_keyprefix", ""))


def _redis(config: Config, command: str, full: str) -> list[int]:
    with redis_errors(config.broker), make_client(config.broker) as client:
        pipe = client.pipeline()
        for key in redis_lists(full):
            getattr(pipe, command)(key_prefix(config) + key)
        return [int(n) for n in pipe.execute()]


def broker_connection(config: Config) -> Any:
    """A connection to the broker, which is not connected yet."""
    from kombu.connection import Connection

    return Connection(config.broker.url, ssl=config.broker.broker_use_ssl or False, connect_timeout=10)


@contextmanager
def _channel(config: Config) -> Iterator[Any]:
    """A channel to RabbitMQ. If a queue does not exist, the block ends without an error."""
    from amqp.exceptions import NotFound

    try:
        with broker_connection(config) as connection:
            yield connection.default_channel
    except NotFound:
        return
    except Exception as error:  # noqa: BLE001  the client library may raise anything
        raise other_properties(config, error) or unusable(error, config.broker) from None


def _declare_passively(config: Config, full: str) -> QueueInfo | None:
    """The state of a queue; None if it does not exist."""
    found = None
    with _channel(config) as channel:
        found = channel.queue_declare(full, passive=True)
    return None if found is None else QueueInfo(depth=found.message_count, consumers=found.consumer_count)
