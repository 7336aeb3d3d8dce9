"""Answers that many ask for: made once, and kept in bounded memory as long as nothing changes."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

from msgspec import Struct

MOST_BYTES = 16 << 20  # of all answers of one study
RECENT_S = 0.5  # `recent` gives the same answer for so long
MEMORY_S = 10.0  # the cost of an answer is forgotten over about this time
MOST_SPENT_S = 1.0  # of a core in that time: an answer that costs more rests before it is made again
OLDEST_S = 15.0  # the greatest age of what `latest` gives although there is something new
TIMES_AS_LONG = 4.0  # the rest is so many times the seconds of a core that the answer took

Made = tuple[bytes, float]  # an answer, and the seconds of a core that it has cost
Make = Callable[[], Awaitable[Made]]


def made(work: Callable[[], bytes]) -> Made:
    """The answer of this work, which is done in this thread."""
    began = time.thread_time()
    return work(), time.thread_time() - began


class _Kept(Struct, frozen=True):
    data: bytes
    state: Hashable
    made: float  # monotonic time
    cost_s: float  # of a core
    spent_s: float  # seconds of a core that this answer has cost lately

    @property
    def next(self) -> float:
        """When the answer may be made again: later for a costly one, so that it does not keep a core busy."""
        return self.made + (TIMES_AS_LONG * self.cost_s if self.spent_s > MOST_SPENT_S else 0.0)


class KeptAnswers:
    """The kept answers. They belong to the event loop: no other thread may use them."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, _Kept] = OrderedDict()  # last used last
        self._being_made: dict[tuple[Hashable, Hashable], asyncio.Task[bytes]] = {}
        self._num_bytes = 0

    async def get(self, key: Hashable, state: Hashable, make: Make) -> bytes:
        """The answer for `key`, made when `state` had its present value, or later.

        Those who ask while it is made wait for the same one; one that costs much, and is asked for all the time, is
        made again only after a rest. Raises what `make` raises.
        """
        kept = self._kept.get(key)
        if kept is not None and kept.state == state:
            self._kept.move_to_end(key)
            return kept.data
        rest_s = 0.0 if kept is None else kept.next - time.monotonic()
        return await self._share(key, state, make, rest_s)

    async def latest(self, key: Hashable, state: Hashable, make: Make) -> tuple[bytes, bool]:
        """The answer for `key`, and whether it was made when `state` had its present value.

        An answer of the last seconds is given at once, and the next one is being made meanwhile. Raises as `get`.
        """
        kept = self._kept.get(key)
        if kept is None or kept.state == state or time.monotonic() - kept.made > OLDEST_S:
            return await self.get(key, state, make), True
        if all(other != key for other, _ in self._being_made):
            self._begin(key, state, make, kept.next - time.monotonic())
        return kept.data, False

    async def recent(self, key: Hashable, make: Make) -> bytes:
        """The answer for `key`, made a moment ago or now. Raises what `make` raises."""
        kept = self._kept.get(key)
        if kept is not None and time.monotonic() < max(kept.made + RECENT_S, kept.next):
            self._kept.move_to_end(key)
            return kept.data
        return await self._share(key, None, make, 0.0)

    async def _share(self, key: Hashable, state: Hashable, make: Make, rest_s: float) -> bytes:
        task = self._being_made.get((key, state)) or self._begin(key, state, make, rest_s)
        return await asyncio.shield(task)  # a caller that gives up does not cancel it for the others

    def _begin(self, key: Hashable, state: Hashable, make: Make, rest_s: float) -> asyncio.Task[bytes]:
        task = asyncio.create_task(self._make(key, state, make, rest_s))
        self._being_made[key, state] = task
        task.add_done_callback(lambda done: self._is_made((key, state), done))
        return task

    async def _make(self, key: Hashable, state: Hashable, make: Make, rest_s: float) -> bytes:
        if rest_s > 0:
            await asyncio.sleep(rest_s)
        data, cost_s = await make()
        now, before = time.monotonic(), self._kept.get(key)
        spent_s = before.spent_s * math.exp((before.made - now) / MEMORY_S) if before is not None else 0.0
        self._keep(key, _Kept(data, state, now, cost_s, spent_s + cost_s))
        return data

    def _is_made(self, key: tuple[Hashable, Hashable], task: asyncio.Task[bytes]) -> None:
        del self._being_made[key]
        if not task.cancelled():
            task.exception()  # marks the error as seen, because no caller may be left

    def _keep(self, key: Hashable, kept: _Kept) -> None:
        before = self._kept.pop(key, None)
        self._num_bytes += len(kept.data) - (len(before.data) if before else 0)
        self._kept[key] = kept
        while self._num_bytes > MOST_BYTES:
            _, oldest = self._kept.popitem(last=False)
            self._num_bytes -= len(oldest.data)
