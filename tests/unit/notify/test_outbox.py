"""Messages that are sent by processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import wait_until

from merlin.notify import outbox
from merlin.notify.notice import Notice
from merlin.notify.outbox import Outbox, Sent
from merlin.plan.notify_rule import NotifyRule

NOTICE = Notice(event="finished", study="x", workspace="", reason="", time=0.0, host="here")


def command(script: str) -> NotifyRule:
    return NotifyRule(when=("finished",), channel="cmd", to=(script,))


def test_a_message_is_sent_while_others_work(tmp_path: Path) -> None:
    gate, box = tmp_path / "gate", Outbox[str]()
    box.send("a", command(f"until test -e {gate}; do :; done; echo $MERLIN_EVENT > {tmp_path}/told"), NOTICE)
    assert box.ended() == []
    assert not box.is_empty
    gate.touch()
    assert wait_until(box.ended) == [Sent("a", "")]
    assert box.is_empty
    assert (tmp_path / "told").read_text() == "finished\n"


def test_why_nobody_was_told_comes_back() -> None:
    box = Outbox[str]()
    rule = NotifyRule(when=("finished",), channel="webhook", to=("$MERLIN_NO_SUCH_HOOK",))
    box.send("a", rule, NOTICE)
    ((sent),) = box.wait()
    assert sent.what == "a"
    assert "MERLIN_NO_SUCH_HOOK is not set" in sent.error


def test_a_process_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MOST_S", 0.05)
    box = Outbox[str]()
    box.send("a", command("sleep 600"), NOTICE)
    ((sent),) = box.wait()
    assert sent.error == "the process that sends it ended with -9"


def test_a_process_that_cannot_be_started_is_an_error_and_no_exception(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox.sys, "executable", "/nowhere/python")
    box = Outbox[str]()
    box.send("a", command("true"), NOTICE)
    assert not box.is_empty
    ((sent),) = box.ended()
    assert sent.error.startswith("no process can be started")
