"""The newest messages, for all listeners: everybody gets the same bytes, and a slow listener only the newest."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from msgspec import Struct

ALIVE_S = 15.0  # between two signs of life, so that proxies keep the connection
_ALIVE = b": alive\n\n"


class Message(Struct, frozen=True):
    """A server-sent event."""

    number: int  # later ones have greater numbers
    frame: bytes


class Channel:
    """Keeps the newest message of each kind. It belongs to the event loop: no other thread may use it."""

    def __init__(self) -> None:
        self._newest: dict[str, Message] = {}
        self._num_published = 0
        self._changed = asyncio.Event()
        self._is_closed = False
        self.num_listeners = 0

    def publish(self, kind: str, data: bytes, *, is_news: bool = True) -> None:
        """Send `data`, which has no line ends, to all listeners; if it is no news, only to later listeners."""
        frame = b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
        if not is_news and kind in self._newest:
            self._newest[kind] = Message(self._newest[kind].number, frame)
            return
        self._num_published += 1
        self._newest[kind] = Message(self._num_published, frame)
        self._wake()

    def close(self) -> None:
        """End the streams of all listeners, once they have the newest messages."""
        self._is_closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """The newest messages, and all later ones; those that came while the listener was busy are joined, in order."""
        seen = 0
        self.num_listeners += 1
        try:
            while True:
                changed = self._changed
                newest = sorted(self._newest.values(), key=lambda message: message.number)
                if news := [message for message in newest if message.number > seen]:
                    seen = news[-1].number
                    yield b"".join(message.frame for message in news)
                elif self._is_closed:
                    return
                elif not await _is_set_in_time(changed):
                    yield _ALIVE
        finally:
            self.num_listeners -= 1


async def _is_set_in_time(event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(ALIVE_S):
            await event.wait()
    except TimeoutError:
        return False
    return True
