"""What keeps one slow study, browser or question from holding up the others."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from typing import Any

import pytest

from merlin.dashboard import channel as channel_module
from merlin.dashboard.channel import Channel
from merlin.dashboard.event_stream import EventStream
from merlin.dashboard.kept_answers import MOST_BYTES, KeptAnswers, Made
from merlin.dashboard.lanes import MOST_WAITING, BusyError, Lane, SlowError


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())


# lanes


def test_a_lane_gives_results_and_errors_back() -> None:
    async def check() -> None:
        lane = Lane("a study")
        assert await lane.run(lambda: 7) == 7
        with pytest.raises(ZeroDivisionError):
            await lane.run(lambda: 1 // 0)
        with pytest.raises(TimeoutError):
            await lane.run(_time_out, 10.0)
        assert not lane.is_busy

    run(check())


def _time_out() -> None:
    raise TimeoutError("of the work itself")


def test_whoever_looks_gives_way_and_whoever_asked_does_not() -> None:
    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, 0)

    async def check() -> None:
        before = niceness()
        assert await Lane("a study").run(niceness) == min(19, before + 10)
        assert await Lane("an action", gives_way=False).run(niceness) == niceness() == before

    run(check())


def test_what_hangs_holds_up_its_own_lane_alone_and_what_waited_is_dropped() -> None:
    hangs, done = threading.Event(), []

    async def check() -> None:
        stuck, other = Lane("the study on a lost file system"), Lane("another study")
        with pytest.raises(SlowError, match="lost file system gave no answer"):
            await stuck.run(hangs.wait, 0.01)
        with pytest.raises(SlowError):
            await stuck.run(lambda: done.append("late"), 0.01)
        assert await other.run(lambda: "quick") == "quick"
        assert stuck.is_busy
        hangs.set()
        assert await stuck.run(lambda: "again") == "again"
        assert done == []

    run(check())


def test_a_lane_takes_no_more_than_it_can_ever_do() -> None:
    hangs = threading.Event()

    async def check() -> None:
        lane = Lane("a study")
        waiting = [asyncio.create_task(lane.run(hangs.wait)) for _ in range(MOST_WAITING)]
        await asyncio.sleep(0)  # lets the tasks begin
        with pytest.raises(BusyError):
            await lane.run(hangs.wait)
        hangs.set()
        await asyncio.gather(*waiting)

    run(check())


# channels


def test_every_listener_gets_the_same_bytes_and_new_ones_what_is_newest() -> None:
    async def check() -> None:
        channel = Channel()
        first, second = channel.frames(), channel.frames()
        channel.publish("study", b"1")
        frames = [await anext(first), await anext(second)]
        assert frames[0] is frames[1] or frames[0] == frames[1] == b"event: study\ndata: 1\n\n"
        channel.publish("study", b"2")
        assert await anext(first) == await anext(channel.frames()) == b"event: study\ndata: 2\n\n"

    run(check())


def test_a_slow_listener_misses_what_is_old_and_gets_each_kind_once() -> None:
    async def check() -> None:
        channel = Channel()
        frames = channel.frames()
        channel.publish("throughput", b"a")
        await anext(frames)
        for number in range(1000):
            channel.publish("study", b"%d" % number)
        channel.publish("throughput", b"b")
        assert await anext(frames) == b"event: study\ndata: 999\n\nevent: throughput\ndata: b\n\n"

    run(check())


def test_what_is_no_news_reaches_only_those_who_come_later() -> None:
    async def check() -> None:
        channel = Channel()
        frames = channel.frames()
        channel.publish("study", b"1")
        await anext(frames)
        channel.publish("study", b"1 later", is_news=False)
        assert b"1 later" in await anext(channel.frames())
        waiting = asyncio.create_task(anext(frames))
        await asyncio.sleep(0)
        assert not waiting.done()
        channel.publish("study", b"2")
        assert await waiting == b"event: study\ndata: 2\n\n"

    run(check())


def test_a_quiet_stream_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "ALIVE_S", 0.001)

    async def check() -> None:
        frames = Channel().frames()
        assert (await anext(frames)).startswith(b":")

    run(check())


def test_a_closed_channel_ends_its_listeners_and_knows_who_left() -> None:
    async def check() -> None:
        channel = Channel()
        frames, leaving = channel.frames(), channel.frames()
        channel.publish("study", b"1")
        await anext(frames)
        await anext(leaving)
        assert channel.num_listeners == 2
        await leaving.aclose()
        assert channel.num_listeners == 1
        channel.publish("gone", b"2")
        channel.close()
        assert [frame async for frame in frames] == [b"event: gone\ndata: 2\n\n"]
        assert channel.num_listeners == 0

    run(check())


def test_a_stream_ends_when_the_browser_leaves_though_nothing_is_sent() -> None:
    async def check() -> None:
        channel = Channel()
        left = asyncio.Event()
        sent: list[Any] = []

        async def receive() -> dict[str, str]:
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        stream = EventStream(channel.frames())
        streaming = asyncio.create_task(stream({"type": "http", "method": "GET"}, receive, send))
        channel.publish("study", b"1")
        while len(sent) < 3:
            await asyncio.sleep(0)
        assert channel.num_listeners == 1
        left.set()
        await streaming
        assert channel.num_listeners == 0

    run(check())


def test_a_browser_that_takes_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merlin.dashboard.event_stream.SEND_S", 0.01)

    async def check() -> None:
        channel = Channel()
        channel.publish("study", b"1")
        never = asyncio.Event()

        async def send(message: Any) -> None:
            if message["type"] == "http.response.body":
                await never.wait()

        await EventStream(channel.frames())({"type": "http", "method": "GET"}, never.wait, send)
        assert channel.num_listeners == 0

    run(check())


# answers


def test_those_who_ask_at_the_same_time_share_one_answer() -> None:
    made = []

    async def make() -> Made:
        made.append(1)
        await asyncio.sleep(0)
        return b"answer", 0.0

    async def check() -> None:
        kept = KeptAnswers()
        answers = await asyncio.gather(*(kept.get("heat", 1, make) for _ in range(100)))
        assert answers == [b"answer"] * 100
        assert await kept.get("heat", 1, make) == b"answer"

    run(check())
    assert len(made) == 1


def test_an_answer_is_made_again_when_the_study_is_another_one_and_is_never_older() -> None:
    async def check() -> None:
        kept = KeptAnswers()
        old, new = asyncio.Event(), asyncio.Event()

        async def answer(text: bytes, when: asyncio.Event) -> Made:
            await when.wait()
            return text, 0.0

        first = asyncio.create_task(kept.get("heat", 1, lambda: answer(b"old", old)))
        await asyncio.sleep(0)
        second = asyncio.create_task(kept.get("heat", 2, lambda: answer(b"new", new)))
        old.set()
        assert await first == b"old"
        assert not second.done()
        new.set()
        assert await second == await kept.get("heat", 2, lambda: answer(b"newer", new)) == b"new"

    run(check())


def test_a_recent_answer_is_given_again_and_an_old_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check() -> None:
        kept = KeptAnswers()

        async def answer(text: bytes) -> Made:
            return text, 0.0

        assert await kept.recent("file", lambda: answer(b"1")) == b"1"
        assert await kept.recent("file", lambda: answer(b"2")) == b"1"
        monkeypatch.setattr("merlin.dashboard.kept_answers.RECENT_S", 0.0)
        assert await kept.recent("file", lambda: answer(b"2")) == b"2"

    run(check())


def test_an_answer_that_costs_much_rests_before_it_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merlin.dashboard.kept_answers.MOST_SPENT_S", 0.1)
    monkeypatch.setattr("merlin.dashboard.kept_answers.TIMES_AS_LONG", 1e6)
    num = iter(range(100))

    async def check() -> None:
        kept = KeptAnswers()

        async def expensive() -> Made:
            return b"%d" % next(num), 0.06

        assert await kept.get("failures", 1, expensive) == b"0"
        assert await kept.get("failures", 2, expensive) == b"1"
        waiting = asyncio.create_task(kept.get("failures", 3, expensive))
        assert await kept.get("other", 3, expensive) == b"2"
        assert not waiting.done()
        waiting.cancel()

    run(check())


def test_the_latest_answer_is_given_at_once_while_the_next_one_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check() -> None:
        kept, go_on, num = KeptAnswers(), asyncio.Event(), iter(range(100))

        async def slow() -> Made:
            await go_on.wait()
            return b"%d" % next(num), 0.0

        first = asyncio.create_task(kept.latest("failures", 1, slow))
        await asyncio.sleep(0)
        assert not first.done()  # there is none yet
        go_on.set()
        assert await first == (b"0", True) == await kept.latest("failures", 1, slow)
        go_on.clear()
        assert await kept.latest("failures", 2, slow) == (b"0", False)
        assert await kept.latest("failures", 3, slow) == (b"0", False)  # no second one is begun
        go_on.set()
        assert await kept.get("failures", 2, slow) == b"1"
        assert await kept.latest("failures", 2, slow) == (b"1", True)
        monkeypatch.setattr("merlin.dashboard.kept_answers.OLDEST_S", 0.0)
        assert await kept.latest("failures", 4, slow) == (b"2", True)

    run(check())


def test_an_error_reaches_all_who_wait_and_is_not_kept() -> None:
    async def check() -> None:
        kept = KeptAnswers()

        async def fail() -> Made:
            await asyncio.sleep(0)
            raise OSError("no disk")

        async def work() -> Made:
            return b"better", 0.0

        found = await asyncio.gather(*(kept.get("a", 1, fail) for _ in range(3)), return_exceptions=True)
        assert [type(error) for error in found] == [OSError] * 3
        assert await kept.get("a", 1, work) == b"better"

    run(check())


def test_kept_answers_have_a_limit_in_bytes() -> None:
    async def check() -> None:
        kept = KeptAnswers()

        async def large() -> Made:
            return bytes(MOST_BYTES // 4), 0.0

        for number in range(40):
            await kept.get(number, 1, large)
        assert kept._num_bytes <= MOST_BYTES
        assert len(kept._kept) == 4

    run(check())
