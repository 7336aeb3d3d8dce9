"""Refused messages are counted, and reported."""

from __future__ import annotations

import logging

import pytest

from merlin.errors import ForgedMessageError
from merlin.execution.distributed import incoming, names
from merlin.execution.distributed.messages import Notice, open_notice, seal_notice
from merlin.execution.distributed.refusals import MAX_KINDS, Refusals

KEY = b"k" * 32


def test_a_kind_is_told_once_and_all_are_counted(caplog):
    refusals = Refusals()
    with caplog.at_level(logging.ERROR, "merlin.worker"):
        for _ in range(1000):
            refusals.note("what is too long", b"\x1b[2J\xff\n" * 1000)
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().isprintable()
    assert len(caplog.records[0].getMessage()) < 400
    assert refusals.take() == 1000
    assert refusals.take() == 0


def test_the_log_stays_short_whatever_kinds_there_are(caplog):
    refusals = Refusals()
    with caplog.at_level(logging.ERROR, "merlin.worker"):
        for number in range(10 * MAX_KINDS):
            refusals.note(f"kind {number}", num=2)
    assert len(caplog.records) == MAX_KINDS
    assert refusals.take() == 20 * MAX_KINDS


def test_what_could_not_be_counted_is_counted_later():
    refusals = Refusals()
    refusals.note("x")
    refusals.put_back(refusals.take())
    refusals.note("x")
    assert refusals.take() == 2


def test_a_notice_with_the_longest_names_passes_whole_and_nothing_around_it_is_kept():
    long = "é" * 4096
    notice = Notice(
        study="s",
        workspace=long,
        plan="p" * 64,
        session="1",
        instance="i" * 2000,
        lo=0,
        hi=1,
        lease="l",
    )
    envelope = seal_notice(notice, KEY)
    assert incoming.sealed_envelope(incoming.body_with(envelope), KEY) == envelope
    assert open_notice(envelope, KEY) == notice
    clean = incoming.clean_redis_message(redis_message(incoming.body_with(envelope), eta="9999-12-31"), "q")
    assert b"eta" not in clean
    assert b"another" not in clean


def redis_message(body: str, **headers: object) -> bytes:
    import base64
    import json

    return json.dumps(
        {
            "body": base64.b64encode(body.encode()).decode(),
            "content-type": "application/json",
            "content-encoding": "utf-8",
            "headers": {"task": names.TASK} | headers,
            "properties": {"body_encoding": "base64", "delivery_tag": "another", "reply_to": "another"},
        }
    ).encode()


@pytest.mark.parametrize("compression", ["gzip", "application/x-bz2", "x", 5])
def test_what_is_compressed_is_refused_by_its_header(compression):
    with pytest.raises(ForgedMessageError, match="compressed"):
        incoming.check_wrapping("application/json", "utf-8", {"task": names.TASK, "compression": compression})


def test_a_task_of_celery_itself_is_refused():
    with pytest.raises(ForgedMessageError, match="another task"):
        incoming.check_wrapping("application/json", "utf-8", {"task": "celery.map"})
