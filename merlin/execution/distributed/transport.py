"""Kombu's transports, guarded so that no foreign message in a queue can end a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, ClassVar

from amqp.method_framing import frame_handler
from amqp.serialization import PROPERTY_CLASSES
from kombu.transport import pyamqp, redis, virtual
from redis.exceptions import ResponseError

from merlin.errors import ForgedMessageError
from merlin.execution.distributed.incoming import MAX_MESSAGE_BYTES, check_wrapping, clean_redis_message
from merlin.execution.distributed.refusals import Refusals
from merlin.execution.distributed.slots import Slots

# ------------------------------------------------------------------------ Redis


class QoS(virtual.QoS):
    """Takes a message only if there is a free slot for it; another worker may have one."""

    def can_consume(self) -> bool:
        slots = self.channel.connection.slots
        return (slots is None or slots.has_room()) and bool(super().can_consume())  # type: ignore[no-untyped-call]


class Channel(redis.Channel):
    """Drops invalid messages. They would end the worker in Kombu's own channel, and anybody can write into a queue.

    It does not store taken messages in Redis: if one is lost with its worker, the owner of its study sends it again.
    """

    waiting: ClassVar[Channel | None] = None  # the one that has waited last
    ack_emulation = False
    _client_id: int | None = None  # the server's number of the connection that waits for messages,
    _known_socket: Any = None  # as long as it has this socket

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # type: ignore[no-untyped-call]
        self.QoS = QoS  # type: ignore[assignment]
        # with a connection of its own, because this channel may close those of its pool at the same time
        self._unblocker = self.Client(connection_pool=self._get_pool())  # type: ignore[no-untyped-call]

    def _brpop_start(self, timeout: float | None = None) -> None:
        connection = self.client.connection
        if connection._sock is None or connection._sock is not self._known_socket:
            self._client_id = _client_id(connection)
            self._known_socket = connection._sock
            Channel.waiting = self
        super()._brpop_start(timeout)  # type: ignore[no-untyped-call]

    def end_wait(self) -> None:
        """Let the server answer at once that no message has come; called by another thread.

        If this account may not do that, the wait goes on.
        """
        if self._in_poll and self._client_id is not None:
            with suppress(*self.connection_errors, ResponseError):
                self._unblocker.client_unblock(self._client_id)

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            self._rename_damaged(self.active_queues)
            return True

    def _size(self, queue: str) -> Any:
        try:
            return super()._size(queue)  # type: ignore[no-untyped-call]
        except ResponseError as error:
            if "WRONGTYPE" not in str(error):
                raise
            self._rename_damaged([queue])
            return super()._size(queue)  # type: ignore[no-untyped-call]

    def _rename_damaged(self, queues: Iterable[str]) -> None:
        """Rename keys that have the name of a queue but another type. They would block all queues."""
        with self.conn_or_acquire() as client:
            for queue in queues:
                for step in self.priority_steps:
                    key = f"{self.global_keyprefix}{self._q_for_pri(queue, step)}"  # type: ignore[no-untyped-call]
                    if client.type(key) not in (b"list", b"none", "list", "none"):
                        client.rename(key, f"{key}:damaged")
                        self.connection.refusals.note(
                            "a key that has the name of a queue, and is no list", key
                        )

    def _create_client(self, asynchronous: bool = False) -> Any:
        client = super()._create_client(asynchronous)  # type: ignore[no-untyped-call]
        parse_response = client.parse_response

        def parse(connection: Any, command: str, **options: Any) -> Any:
            reply = parse_response(connection, command, **options)
            return self._cleaned(*reply) if command == "BRPOP" and reply else reply

        client.parse_response = parse
        return client

    def _cleaned(self, key: bytes, raw: bytes) -> tuple[bytes, bytes] | None:
        """A clean message in place of the raw one; None, as for an empty queue, if it is refused."""
        queue = key.decode("utf-8", "replace").rsplit(self.sep, 1)[0]
        try:
            return key, clean_redis_message(raw, queue)
        except ForgedMessageError as error:
            self.connection.refusals.note(str(error), raw)
            return None


def _client_id(connection: Any) -> int | None:
    """The server's number of a connection; None if the server does not tell."""
    try:
        connection.send_command("CLIENT", "ID")
        return int(connection.read_response())
    except ResponseError:
        return None


class Transport(redis.Transport):
    Channel = Channel
    refusals: Refusals
    slots: Slots | None = None


def end_wait() -> None:
    """Let a worker that waits for messages leave at once, and not when the server's answer is due, a second later.

    To close the connection instead could lose a message that is on its way.
    """
    if Channel.waiting is not None:
        Channel.waiting.end_wait()


# --------------------------------------------------------------------- RabbitMQ

_METHOD, _HEADER, _BODY = 1, 2, 3  # frames
_FIXED = 12  # bytes of a header before its properties: class, weight, size of the body
Frame = tuple[int, int, bytes]


def guarded_frames(connection: Any, callback: Callable[..., None]) -> Callable[[Frame], bool]:
    """Wrap py-amqp's reader of frames: a message that is refused is replaced by an empty one.

    Properties that cannot be parsed would end this worker, and the next one that gets the message. The body of a
    refused message is not kept.
    """
    read: Callable[[Frame], bool] = frame_handler(connection, callback)
    left: dict[int, int] = {}  # channel -> remaining bytes of a refused body

    def on_frame(frame: Frame) -> bool:
        kind, channel, payload = frame
        if kind == _BODY and channel in left:
            connection.bytes_recv += 1
            left[channel] -= len(payload)
            if left[channel] <= 0:
                del left[channel]
            return False
        if kind != _HEADER or not (reason := _why_refused(payload)):
            return read(frame)
        if size := int.from_bytes(payload[4:_FIXED]):
            left[channel] = size
        connection.refused = reason
        try:
            return read((kind, channel, payload[:4] + bytes(8) + b"\0\0"))  # no body, no properties
        finally:
            connection.refused = ""

    return on_frame


def _why_refused(payload: bytes) -> str:
    """Why the header of a message is refused; "" if the message may be read."""
    try:
        if int.from_bytes(payload[4:_FIXED]) > MAX_MESSAGE_BYTES:
            return "a message that is too long"
        found, _ = PROPERTY_CLASSES[int.from_bytes(payload[:2])](payload, _FIXED)
        check_wrapping(
            found.get("content_type"), found.get("content_encoding"), found.get("application_headers")
        )
    except ForgedMessageError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  foreign bytes may raise anything
        return f"a message whose properties cannot be read ({type(error).__name__})"
    return ""


class Connection(pyamqp.Connection):
    refused = ""  # why the current message was replaced by an empty one

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options, frame_handler=guarded_frames)


class AmqpTransport(pyamqp.Transport):
    Connection = Connection


class AmqpsTransport(pyamqp.SSLTransport):
    Connection = Connection


def use_guarded(refusals: Refusals, slots: Slots) -> None:
    """Use the guarded transports for all later broker connections of this process. For workers only."""
    from kombu.transport import TRANSPORT_ALIASES

    Transport.refusals, Transport.slots = refusals, slots
    ours = dict.fromkeys(("redis", "rediss"), Transport) | {"amqp": AmqpTransport, "amqps": AmqpsTransport}
    TRANSPORT_ALIASES.update({name: f"{__name__}:{kind.__name__}" for name, kind in ours.items()})
