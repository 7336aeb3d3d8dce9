"""What no app.yaml can switch on in a worker, and that its consumer lets nothing else in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from merlin.config.load import find_config
from merlin.execution.distributed import names
from merlin.execution.distributed.app import make_app
from merlin.execution.distributed.consumer import Consumer
from merlin.execution.distributed.incoming import body_with
from merlin.execution.distributed.messages import Notice, seal_notice
from merlin.execution.distributed.refusals import Refusals


@pytest.fixture
def config(tmp_path):
    found = find_config({"MERLIN_BROKER_URL": "redis://localhost:1/0", "HOME": str(tmp_path)})
    assert found is not None
    return found


def test_settings_of_the_user_do_not_let_strangers_in(config):
    theirs = {
        "accept_content": ["pickle", "json"],
        "worker_enable_remote_control": True,
        "worker_send_task_events": True,
        "task_serializer": "pickle",
    }
    found = make_app(replace(config, celery=theirs)).conf
    assert list(found.accept_content) == ["json"]
    assert found.task_serializer == "json"
    assert not found.worker_enable_remote_control
    assert not found.worker_send_task_events


class Message:
    """One that a broker delivers."""

    def __init__(self, body: Any, **headers: Any) -> None:
        self.headers: Any = {"task": names.TASK, "id": "1"} | headers
        self.properties = {"reply_to": "me"}
        self.body, self.content_type, self.content_encoding = body, "application/json", "utf-8"
        self.channel = SimpleNamespace()
        self.num_acknowledged = 0

    def ack_log_error(self, *_: object) -> None:
        self.num_acknowledged += 1


@pytest.fixture
def consumer(config):
    """The gate alone: Celery's own constructor connects to a broker."""
    made = Consumer.__new__(Consumer)
    made._key, made._refusals, made.connection_errors = config.key, Refusals(), ()
    return made


def test_of_a_sealed_notice_no_more_than_was_sealed_reaches_celery(consumer, config):
    notice = Notice(study="s", workspace="/w", plan="p", session="1", instance="i", lo=0, hi=1, lease="l")
    envelope = seal_notice(notice, config.key)
    callback = {"task": "celery.map"}
    body = body_with(envelope).replace("{}]", f'{{"callbacks": [{callback}]}}]'.replace("'", '"'))
    message = Message(body.encode(), eta="9999-12-31T00:00:00", shadow="x", expires=5)
    assert "celery.map" in body
    assert consumer._is_admitted(message)
    assert message.num_acknowledged == 0
    assert message.body == body_with(envelope)
    assert set(message.headers) == {"lang", "task", "id"}
    assert message.properties == {}


@pytest.mark.parametrize("body", [b"{}", b"5", b"", None, 5, object()])
def test_everything_else_is_acknowledged_and_counted(consumer, body):
    message = Message(body)
    assert not consumer._is_admitted(message)
    assert message.num_acknowledged == 1
    assert consumer._refusals.take() == 1
