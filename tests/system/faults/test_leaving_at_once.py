"""A worker that waits for a message leaves without waiting for the end of the server's answer."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import Empty

import kombu
import pytest
from servers import RedisServer

from merlin.execution.distributed import transport
from merlin.execution.waiting import is_readable

WAIT_S = 600.0  # of the server for a message, where Kombu has a second


@pytest.fixture
def channel(any_redis: RedisServer) -> Iterator[transport.Channel]:
    with kombu.Connection(any_redis.url, transport=transport.Transport) as connection:
        yield make_channel(connection)


def make_channel(connection: kombu.Connection) -> transport.Channel:
    made = connection.channel()
    kombu.Queue("work", channel=made).declare()
    made.basic_consume("work", no_ack=True, callback=lambda message: None, consumer_tag="tag")
    return made


def wait_for_message(channel: transport.Channel) -> int:
    """Begin to wait as Celery's loop does; returns the descriptor of the connection."""
    channel.brpop_timeout = WAIT_S
    channel.connection.cycle._register_BRPOP(channel)
    return int(channel.client.connection._sock.fileno())


def test_the_wait_ends_with_no_message_and_the_next_one_ends_too(channel: transport.Channel) -> None:
    for _ in range(2):
        fd = wait_for_message(channel)
        transport.end_wait()
        assert is_readable(fd, 60)
        with pytest.raises(Empty):
            channel._brpop_read()


def test_a_connection_that_was_made_again_has_another_number(channel: transport.Channel) -> None:
    wait_for_message(channel)
    before = channel._client_id
    channel.client.connection.disconnect()
    fd = wait_for_message(channel)
    assert channel._client_id != before
    transport.end_wait()
    assert is_readable(fd, 60)


def test_the_channel_may_close_at_the_same_time(any_redis: RedisServer) -> None:
    with (
        kombu.Connection(any_redis.url, transport=transport.Transport) as connection,
        ThreadPoolExecutor() as pool,
    ):
        for _ in range(100):  # the two race
            channel = make_channel(connection)
            wait_for_message(channel)
            ending = pool.submit(transport.end_wait)
            channel.close()
            ending.result()


def test_nothing_happens_while_nobody_waits(channel: transport.Channel) -> None:
    transport.end_wait()
