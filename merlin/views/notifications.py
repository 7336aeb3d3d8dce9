"""Who gets which notices about a study, which were sent so far, and whether the recipients can be reached."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from merlin.errors import MerlinError
from merlin.execution.refusal_notices import rules_of
from merlin.ledger.replay import replay
from merlin.notify.deliver import deliver
from merlin.notify.notice import TEST, Notice
from merlin.notify.told import NOTIFIED
from merlin.plan.notify_rule import NotifyRule
from merlin.spec.load import load_spec
from merlin.workspace.directory import Workspace


class TimeTold(Struct, frozen=True, kw_only=True):
    """A message that was sent, or that could not be."""

    event: str
    time: float | None  # epoch seconds
    error: str  # why the notice was not sent, or ""


class NotifyLine(Struct, frozen=True, kw_only=True):
    """One entry of `notify`."""

    number: int  # in the spec, from 0
    when: tuple[str, ...]
    channel: str
    to: tuple[str, ...]  # as in the spec: variables of the environment are not filled in
    told: tuple[TimeTold, ...] = ()  # oldest first


class Tried(Struct, frozen=True, kw_only=True):
    """What became of a test message; `error` says why it was not sent."""

    line: NotifyLine
    error: str


class Notifications(Struct, frozen=True, kw_only=True):
    """The entries of a study, or of a spec that has not run yet."""

    study: str
    workspace: str  # "" for a spec
    rules: tuple[NotifyRule, ...]
    lines: tuple[NotifyLine, ...]


def notifications_of(workspace: Workspace) -> Notifications:
    told: dict[int, list[TimeTold]] = {}
    for event in replay(workspace.ledger_dir, workspace.plan).events():
        if event.kind == NOTIFIED:
            said = TimeTold(event=event.data["event"], time=event.time, error=event.data["error"])
            told.setdefault(event.data["rule"], []).append(said)
    plan = workspace.plan
    return Notifications(
        study=plan.name, workspace=str(workspace.path), rules=plan.notify, lines=_lines(plan.notify, told)
    )


def notifications_of_spec(path: Path) -> Notifications:
    """Return whom a spec tells of what, before any study has told anything. Raises SpecError."""
    document = load_spec(path, allow_undefined=True).document
    rules = rules_of(path, document)
    return Notifications(study=document.description.name, workspace="", rules=rules, lines=_lines(rules, {}))


def send_tests(found: Notifications, environment: Mapping[str, str]) -> Iterator[Tried]:
    """Send a test message by every entry, one after the other, each tried once."""
    for line, rule in zip(found.lines, found.rules, strict=True):
        notice = Notice(
            event=TEST,
            study=found.study,
            workspace=found.workspace,
            reason="",
            time=time.time(),
            host=socket.gethostname(),
        )
        problem = ""
        try:
            deliver(rule, notice, environment, num_tries=1)
        except MerlinError as error:
            problem = str(error)
        yield Tried(line=line, error=problem)


def _lines(rules: tuple[NotifyRule, ...], told: Mapping[int, list[TimeTold]]) -> tuple[NotifyLine, ...]:
    return tuple(
        NotifyLine(number=n, when=r.when, channel=r.channel, to=r.to, told=tuple(told.get(n, ())))
        for n, r in enumerate(rules)
    )
