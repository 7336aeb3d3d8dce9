"""The content of a notice: one event of one study, with the numbers that belong to it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from merlin.base.records import FileFormat, to_plain
from merlin.base.text import count, duration
from merlin.errors import command_line

FORMAT = FileFormat("merlin-notice", 1)
TEST = "test"  # the event of `merlin notify --test`


class Notice(Struct, frozen=True, kw_only=True):
    """An event of a study: finished, failed, stopped, failures, stall, refused, or a test."""

    event: str
    study: str
    workspace: str  # "" if it is about worker jobs of a spec
    reason: str  # why it stopped, stalls or was refused; "" if there is nothing to say
    time: float  # epoch seconds
    host: str  # of the process that noticed it
    study_id: str = ""
    planned: int = 0
    ok: int = 0
    failed: int = 0
    skipped: int = 0
    missing: int = 0
    seconds: float | None = None  # the time that the run has taken so far


class Message(Struct, frozen=True, kw_only=True):
    """A notice in words; channels send it."""

    notice: Notice
    title: str  # one line
    text: str

    def facts(self) -> dict[str, Any]:
        """The JSON document that commands and webhooks get."""
        words = {"title": self.title, "text": self.text}
        return {**FORMAT.head(), **to_plain(self.notice), **words}

    def variables(self) -> dict[str, str]:
        """The environment variables that commands get."""
        values = {name: value for name, value in self.facts().items() if name not in FORMAT.head()}
        return {
            f"MERLIN_{name.upper()}": "" if value is None else str(value).replace("\0", "")
            for name, value in values.items()
        }


def message_of(notice: Notice, failures: Iterable[str] = ()) -> Message:
    """The notice in words; `failures`: a line for each of the most frequent kinds."""
    title = " ".join(_title(notice).split())
    return Message(notice=notice, title=title, text="\n".join([title, *_lines(notice, failures)]))


def _title(notice: Notice) -> str:
    name = f"study {notice.study}"
    match notice.event:
        case "finished":
            return f"{name} has finished: all {count(notice.planned, 'task')} ended ok"
        case "failed" if notice.missing:
            return f"{name} has failed: {notice.reason or 'the run broke'}"
        case "failed":
            not_ok = notice.failed + notice.skipped
            return f"{name} has ended: {not_ok:,} of {count(notice.planned, 'task')} did not end ok"
        case "stopped":
            return f"{name} has stopped: {notice.reason or 'nobody knows why'}"
        case "failures":
            return f"{name}: {notice.failed:,} of {count(notice.planned, 'task')} have failed"
        case "stall":
            return f"{name} stalls: {notice.reason}"
        case "refused":
            return f"{name} gets no batch jobs: {notice.reason}"
        case _:
            return f"{name}: a test of its notifications"


def _lines(notice: Notice, failures: Iterable[str]) -> list[str]:
    lines = []
    if notice.planned:
        took = f"   ({duration(notice.seconds)})" if notice.seconds is not None else ""
        lines.append(
            f"tasks: planned {notice.planned:,} = ok {notice.ok:,} + failed {notice.failed:,} + "
            f"skipped {notice.skipped:,} + missing {notice.missing:,}{took}"
        )
    if notice.reason:
        lines.append(f"reason: {notice.reason}")
    lines += failures
    if notice.workspace:
        lines.append(f"workspace: {notice.workspace}")
        lines += [f"see: {command_line(command, notice.workspace)}" for command in _commands(notice)]
    return [*lines, f"noticed on {notice.host}"]


def _commands(notice: Notice) -> list[str]:
    """What to type next."""
    shown = ["failures"] if notice.failed else []
    return [*shown, "status" if notice.event in ("finished", "failed", "failures", TEST) else "explain"]
