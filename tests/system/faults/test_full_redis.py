"""What a worker's transport does while Redis takes no writes."""

from __future__ import annotations

from kombu import Connection, Consumer, Queue
from servers import RedisServer

from merlin.execution.distributed.names import TASK
from merlin.execution.distributed.transport import Transport


def test_a_message_that_is_taken_from_a_full_redis_is_delivered(own_redis: RedisServer) -> None:
    seen = []

    def take(body: object, message: object) -> None:
        seen.append(body)
        message.ack()

    queue = Queue("work", routing_key="work")
    with Connection(own_redis.url, transport=Transport) as connection, own_redis.client() as client:
        connection.SimpleQueue(queue).put({"number": 1}, headers={"task": TASK})
        with Consumer(connection.channel(), queue, callbacks=[take]):
            # less than an empty server takes, so every write is refused
            client.config_set("maxmemory", "1mb")
            connection.drain_events(timeout=120)
            client.config_set("maxmemory", "0")
        assert seen == [{"number": 1}]
        assert not client.exists("unacked") and not client.llen("work")
        connection.SimpleQueue(queue).put({"number": 2}, headers={"task": TASK})
        with Consumer(connection.channel(), queue, callbacks=[take]):
            connection.drain_events(timeout=120)
        assert seen[1:] == [{"number": 2}] and not client.exists("unacked")
