"""What `merlin notify` prints."""

from __future__ import annotations

import os
from pathlib import Path

from merlin.base.text import cut
from merlin.cli.output import console, flush, local_time, print_json, print_table, remark
from merlin.errors import MissingExtraError
from merlin.spec.notify_words import lacks_apprise
from merlin.views.notifications import (
    Notifications,
    NotifyLine,
    TimeTold,
    notifications_of,
    notifications_of_spec,
    send_tests,
)
from merlin.workspace.directory import open_workspace

MAX_ADDRESS = 60  # characters in the table


def show_notifications(path: Path, *, as_json: bool) -> int:
    """The entries, and what was told; returns the exit code."""
    found = _open(path)
    if as_json:
        print_json(
            {"study": found.study, "workspace": found.workspace, "entries": found.lines, "exit_code": 0}
        )
    elif not found.lines:
        print(_nobody(found))
    else:
        rows = [
            [line.number, ", ".join(line.when), line.channel, _address(line), _told(line.told)]
            for line in found.lines
        ]
        print_table(("entry", "when", "by", "to", "told last"), rows, right=("entry",))
        if any(line.channel == "apprise" for line in found.lines) and lacks_apprise():
            remark(str(MissingExtraError("apprise", "notify", "notifying by apprise")))
    return 0


def test_notifications(path: Path, *, as_json: bool) -> int:
    """Send a test message by every entry, and show what became of it; returns the exit code."""
    found = _open(path)
    tried = []
    for result in send_tests(found, os.environ):
        tried.append(result)
        if not as_json:
            line = result.line
            console().print(
                f"{line.number}  {line.channel}  {_address(line)}: {result.error or 'delivered'}",
                soft_wrap=True,
            )
            flush()
    code = int(any(result.error for result in tried))
    if as_json:
        entries = [{"entry": t.line.number, "channel": t.line.channel, "error": t.error} for t in tried]
        print_json({"study": found.study, "entries": entries, "exit_code": code})
    elif not tried:
        print(_nobody(found))
    return code


def _open(path: Path) -> Notifications:
    return notifications_of(open_workspace(path)) if path.is_dir() else notifications_of_spec(path)


def _nobody(found: Notifications) -> str:
    return f"the spec of study {found.study} has no block notify, so nobody is told of anything"


def _address(line: NotifyLine) -> str:
    return cut(" ".join(", ".join(line.to).split()), MAX_ADDRESS)


def _told(told: tuple[TimeTold, ...]) -> str:
    if not told:
        return "nothing yet"
    last = told[-1]
    when = "" if last.time is None else f" {local_time(last.time)}"
    return f"{last.event}{when}{f': not delivered: {last.error}' if last.error else ''}"
