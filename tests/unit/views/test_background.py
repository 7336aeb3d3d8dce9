from __future__ import annotations

import threading
from itertools import chain, repeat

from waiting import wait_until

from merlin.views.background import Background


def test_the_first_answer_is_waited_for_as_long_as_one_likes() -> None:
    may_answer = threading.Event()

    def ask() -> str:
        may_answer.wait()
        return "answer"

    background = Background(ask, every_s=0.0, times_as_long=0.0)
    assert background.latest() is None
    assert background.latest(wait_s=0.01) is None
    may_answer.set()
    assert background.latest(wait_s=60.0) == "answer"


def test_while_it_is_asked_again_the_last_answer_is_shown_and_nobody_waits() -> None:
    answers, may_answer = chain(["first"], repeat("second")), threading.Semaphore(1)

    def ask() -> str:
        may_answer.acquire()
        return next(answers)

    background = Background(ask, every_s=0.0, times_as_long=0.0)
    assert background.latest(wait_s=60.0) == "first"
    assert background.latest(wait_s=60.0) == "first"
    may_answer.release()
    wait_until(lambda: background.latest() == "second")


def test_an_answer_that_is_new_enough_is_not_asked_for_again() -> None:
    asked: list[int] = []
    background = Background(lambda: asked.append(1) or len(asked), every_s=1000.0, times_as_long=1.0)
    assert [background.latest(wait_s=60.0) for _ in range(3)] == [1, 1, 1]
    background.again()
    wait_until(lambda: background.latest() == 2)
    background.forget()
    assert background.latest(wait_s=60.0) == 3


def test_a_question_that_fails_leaves_the_last_answer_and_is_asked_again(monkeypatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    answers = chain([1, None], repeat(2))

    def ask() -> int:
        answer = next(answers)
        if answer is None:
            raise RuntimeError("a bug")
        return answer

    background = Background(ask, every_s=0.0, times_as_long=0.0)
    assert background.latest(wait_s=60.0) == 1
    wait_until(lambda: background.latest() == 2)
