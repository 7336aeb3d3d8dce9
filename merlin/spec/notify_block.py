"""The block `notify`: who is told when something happens to the study, and how."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from merlin.base.document.field_types import Block, FailureLimit, Name, Seconds, TextList, as_list, optional
from merlin.spec.notify_words import EVENTS, STALL_S, Event

_EVENT_SCHEMA = {"type": "string", "enum": list(EVENTS)}
Events = Annotated[
    tuple[Event, ...],
    BeforeValidator(as_list),
    WithJsonSchema({"anyOf": [_EVENT_SCHEMA, {"type": "array", "items": _EVENT_SCHEMA, "minItems": 1}]}),
]


class Notify(Block):
    """One entry of `notify`: what it waits for, and one way to tell somebody."""

    when: Events = Field(description=f"One or several of {', '.join(EVENTS)}.")
    above: FailureLimit = optional(
        'With failures: tell when more tasks than this have failed: 12 or "5%" of all tasks.', 0.0
    )
    after: Seconds = optional("With stall: tell when no task has ended for so long.", STALL_S)
    cmd: Name | None = optional("Run this with /bin/sh; the facts are in MERLIN_… variables and on stdin.")
    webhook: Name | None = optional("Post the facts, as JSON, to this address; $NAME is the environment's.")
    mail: TextList | None = optional("Send mail to these addresses, by the mail program of the machine.")
    apprise: TextList | None = optional(
        "Addresses for apprise (Slack, Teams, …); $NAME is the environment's."
    )
