"""The messages that wait in a broker, to be lost, doubled and falsified."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from installation import Installation
from servers import RabbitServer, RedisServer

from merlin.config.model import QUEUE_TAG


class Messages(Protocol):
    """The waiting messages of one broker. Those that were seen are remembered, and can come again."""

    def drop(self, rng: random.Random) -> bool:
        """Lose one; False if none waits."""

    def double(self, rng: random.Random) -> bool:
        """Deliver one twice; False if none waits."""

    def replay(self, rng: random.Random) -> bool:
        """Deliver again one that was seen before; False if none was."""

    def forge(self, rng: random.Random) -> bool:
        """Deliver one that was seen before, changed; False if none was."""

    def look(self) -> None:
        """Remember what waits now."""


class RedisMessages:
    """Lists, one per queue and priority; an element is Kombu's JSON envelope."""

    def __init__(self, server: RedisServer) -> None:
        self._client = server.client()
        self._seen: dict[str, str] = {}  # envelope -> list it waited in
        self._forged: set[str] = set()
        self._max_seen = 2000

    def _lists(self) -> list[str]:
        match = QUEUE_TAG.replace("[", "\\[").replace("]", "\\]") + "*"
        return [
            key for key in self._client.scan_iter(match=match, count=1000) if self._client.type(key) == "list"
        ]

    def look(self) -> None:
        for key in self._lists():
            for envelope in self._client.lrange(key, 0, 99):
                if len(self._seen) < self._max_seen and envelope not in self._forged:
                    self._seen[envelope] = key

    def _pick(self, rng: random.Random) -> tuple[str, str] | None:
        self.look()
        waiting = [(key, text) for key in sorted(self._lists()) for text in self._client.lrange(key, 0, 99)]
        return rng.choice(waiting) if waiting else None

    def drop(self, rng: random.Random) -> bool:
        found = self._pick(rng)
        return bool(found and self._client.lrem(found[0], 1, found[1]))

    def double(self, rng: random.Random) -> bool:
        found = self._pick(rng)
        return bool(found and self._client.lpush(found[0], found[1]))

    def replay(self, rng: random.Random) -> bool:
        if not self._seen:
            return False
        text = rng.choice(sorted(self._seen))
        self._client.rpush(self._seen[text], text)
        return True

    def forge(self, rng: random.Random) -> bool:
        if not self._seen:
            return False
        text = rng.choice(sorted(self._seen))
        envelope = json.loads(text)
        body = json.loads(base64.b64decode(envelope["body"]))
        body[0][0] = forged(body[0][0], rng)
        envelope["body"] = base64.b64encode(json.dumps(body).encode()).decode()
        self._forged.add(json.dumps(envelope))
        self._client.rpush(self._seen[text], json.dumps(envelope))
        return True


class RabbitMessages:
    """Taken from their queues one by one, and put back."""

    def __init__(self, server: RabbitServer, queues: list[str]) -> None:
        self._server, self._queues = server, queues
        self._seen: dict[str, tuple[str, dict[str, Any], str]] = {}
        self._forged: set[str] = set()

    def _with_channel(self, action: Callable[[Any], bool]) -> bool:
        with self._server.connection() as connection, connection.channel() as channel:
            return action(channel)

    def _with_message(self, rng: random.Random, action: Callable[[Any, Any, str], object]) -> bool:
        """Take a message from any queue, call `action(channel, message, its text)`; False if none waits."""
        from amqp.exceptions import NotFound

        with self._server.connection() as connection:
            for queue in rng.sample(self._queues, k=len(self._queues)):
                with suppress(NotFound), connection.channel() as channel:  # not every queue is declared yet
                    message = channel.basic_get(queue)
                    if message is not None:
                        text = message.body if isinstance(message.body, str) else message.body.decode()
                        if text not in self._forged:
                            self._seen[text] = (queue, dict(message.properties), text)
                        action(channel, message, text)
                        return True
        return False

    def _put(self, channel: Any, text: str) -> None:
        queue, properties, _ = self._seen[text]
        self._send(channel, queue, properties, text)

    def _send(self, channel: Any, queue: str, properties: dict[str, Any], text: str) -> None:
        from amqp.basic_message import Message

        channel.basic_publish(Message(text, **properties), exchange="", routing_key=queue)

    def look(self) -> None:
        self._with_message(
            random.Random(0),
            lambda channel, message, _: channel.basic_reject(message.delivery_tag, requeue=True),
        )

    def drop(self, rng: random.Random) -> bool:
        return self._with_message(rng, lambda channel, message, _: channel.basic_ack(message.delivery_tag))

    def double(self, rng: random.Random) -> bool:
        def action(channel: Any, message: Any, text: str) -> None:
            if text in self._seen:
                self._put(channel, text)
            channel.basic_reject(message.delivery_tag, requeue=True)

        return self._with_message(rng, action)

    def replay(self, rng: random.Random) -> bool:
        if not self._seen:
            return False
        text = rng.choice(sorted(self._seen))
        return self._with_channel(lambda channel: self._put(channel, text) is None)

    def forge(self, rng: random.Random) -> bool:
        if not self._seen:
            return False
        queue, properties, text = self._seen[rng.choice(sorted(self._seen))]
        body = json.loads(text)
        body[0][0] = forged(body[0][0], rng)
        self._forged.add(json.dumps(body))
        return self._with_channel(
            lambda channel: self._send(channel, queue, properties, json.dumps(body)) is None
        )


def forged(sealed: dict[str, str], rng: random.Random) -> Any:
    """A sealed notice as somebody without the key would change it."""
    notice = json.loads(sealed["body"])
    changed = json.dumps(notice | {"hi": notice["hi"] + 1})
    return rng.choice(
        [
            sealed | {"body": changed},
            sealed | {"body": json.dumps(notice | {"workspace": "/tmp"})},
            sealed | {"mac": sealed["mac"][::-1]},
            {"body": changed},
            {"body": changed, "mac": ""},
            [1, 2],
            "text",
            None,
        ]
    )


def messages_of(home: Installation, broker: RedisServer | RabbitServer, queues: list[str]) -> Messages:
    """`queues` are names as in the spec."""
    if isinstance(broker, RedisServer):
        return RedisMessages(broker)
    return RabbitMessages(broker, [home.config().queue_name(queue) for queue in queues])
