"""Server-sent events as an answer: it ends when the browser leaves, and lets go of one that takes nothing."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.types import Receive, Scope, Send

SEND_S = 60.0  # for one message to leave; a browser that takes nothing for so long is given up
_RETRY = b"retry: 2000\n\n"


class EventStream(Response):
    """Sends what `frames` yields."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames = frames

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        if scope["method"] == "HEAD":
            await send({"type": "http.response.body", "body": b""})
            return
        sending = asyncio.create_task(self._send_all(send))
        leaving = asyncio.create_task(_until_left(receive))
        try:
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            results = await asyncio.gather(sending, leaving, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OSError | TimeoutError):
                raise result

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._frames) as frames:
            await _send(send, _RETRY)
            async for frame in frames:
                await _send(send, frame)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send(send: Send, body: bytes) -> None:
    async with asyncio.timeout(SEND_S):
        await send({"type": "http.response.body", "body": body, "more_body": True})


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
