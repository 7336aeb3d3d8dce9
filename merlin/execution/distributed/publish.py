"""Sends messages through the broker, in the format that Celery's workers read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from merlin.execution.distributed import names
from merlin.execution.distributed.connect import make_client, redis_errors, unusable
from merlin.execution.distributed.incoming import (
    CONTENT_TYPE,
    ENCODING,
    body_with,
    clean_headers,
    wrapped_for_redis,
)
from merlin.execution.distributed.queues import (
    broker_connection,
    broker_queue,
    empty_queues,
    key_prefix,
    other_properties,
    redis_list,
)

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.contracts import Carrier


def make_carrier(config: Config) -> Carrier:
    """A carrier for the broker of one user. Threads may share it."""
    return RedisCarrier(config) if config.broker.is_redis else AmqpCarrier(config)


class RedisCarrier:
    """Implements `contracts.Carrier`: it sends all messages at once; Kombu needs a millisecond for each."""

    def __init__(self, config: Config) -> None:
        self._config, self._client = config, make_client(config.broker)

    def send(self, queue: str, envelopes: Sequence[Mapping[str, str]], *, is_retry: bool = False) -> None:
        priority = names.PRIORITIES["redis"]["retry" if is_retry else "run"]
        full = self._config.queue_name(queue)
        texts = [wrapped_for_redis(body_with(e).encode("ascii"), full, priority) for e in envelopes]
        with redis_errors(self._config.broker):
            self._client.lpush(key_prefix(self._config) + redis_list(full, priority), *texts)

    def empty(self, queues: Iterable[str]) -> list[str]:
        return empty_queues(self._config, queues)


class AmqpCarrier:
    """Implements `contracts.Carrier`."""

    def __init__(self, config: Config) -> None:
        self._config, self._connection = config, broker_connection(config)

    def send(self, queue: str, envelopes: Sequence[Mapping[str, str]], *, is_retry: bool = False) -> None:
        """Raises ExecutionError also if the broker has a queue with other properties."""
        from amqp.exceptions import AMQPError
        from kombu.exceptions import OperationalError
        from kombu.pools import producers

        declared = broker_queue(self._config, queue)
        try:
            with producers[self._connection].acquire(block=True) as producer:
                for envelope in envelopes:
                    producer.publish(
                        body_with(envelope),
                        content_type=CONTENT_TYPE,
                        content_encoding=ENCODING,
                        headers=clean_headers(),
                        routing_key=declared.routing_key,
                        declare=[declared],
                        priority=names.PRIORITIES["amqp"]["retry" if is_retry else "run"],
                        retry=True,
                        retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2},
                    )
        except (AMQPError, OperationalError, OSError) as error:
            raise other_properties(self._config, error) or unusable(error, self._config.broker) from None

    def empty(self, queues: Iterable[str]) -> list[str]:
        return empty_queues(self._config, queues)
