"""Entries of `notify`: each has one way to tell somebody, which can work, and only keys that mean something."""

from __future__ import annotations

import re

from merlin.base.document.findings import Findings
from merlin.base.document.scalars import shown
from merlin.base.document.tokens import find_tokens
from merlin.base.document.tree import Entry
from merlin.spec.expand import Expansion, column_labels
from merlin.spec.notify_words import CHANNELS, lacks_apprise
from merlin.spec.variables import STEP_VARIABLES

_VARIABLE = re.compile(r"\$(\w+|\{\w+\})")
_MAIL = re.compile(r"[^\s@,<>]+@[^\s@,<>]+")
_SCHEME = re.compile(r"[A-Za-z][\w+.-]*://.+")
_ONLY_WITH = {"above": "failures", "after": "stall"}


def check_notify(expansion: Expansion, findings: Findings) -> None:
    """Report entries that tell nobody, in two ways, or in one that cannot work."""
    tree = expansion.tree
    differing = {*tree.get("global.parameters").mapping, *STEP_VARIABLES, *column_labels(tree)}
    for number, entry in enumerate(tree.get("notify").items):
        if not entry.mapping:
            continue
        _check_events(entry, findings)
        _check_channels(number, entry, findings)
        for channel in CHANNELS:
            for item in entry.get(channel).items:
                _check_address(channel, item, findings)
                _check_tokens(item, differing, findings)


def _check_events(entry: Entry, findings: Findings) -> None:
    when = entry.get("when")
    events = [item.text for item in when.items]
    if isinstance(when.content, list) and not events:
        findings.error(when.key_place, "when names no event", text="when", code="empty")
    for key, event in _ONLY_WITH.items():
        item = entry.get(key)
        if not item.is_null and event not in events:
            hint = f"add {event} to when, or leave {key} out"
            findings.error(item.key_place, f"{key} goes with {event}", text=key, hint=hint, code="notify")


def _check_channels(number: int, entry: Entry, findings: Findings) -> None:
    given = [channel for channel in CHANNELS if not entry.get(channel).is_null]
    ways = ", ".join(CHANNELS)
    if not given and entry.mapping.keys() <= {"when", *_ONLY_WITH, *CHANNELS}:
        findings.error(
            entry.place, f"notify[{number}] tells nobody", hint=f"give it one of {ways}", code="notify"
        )
    elif len(given) > 1:
        findings.error(
            entry.get(given[1]).key_place,
            f"notify[{number}] has both {given[0]} and {given[1]}",
            text=given[1],
            hint=f"an entry has exactly one of {ways}; make it two entries",
            code="notify",
        )
    elif given == ["apprise"] and lacks_apprise():
        findings.warning(
            entry.get("apprise").key_place,
            "nobody can be told by apprise: it is not installed here",
            text="apprise",
            hint="pip install 'merlin-ensembles[notify]', also where workers run",
            code="notify",
        )


def _check_address(channel: str, item: Entry, findings: Findings) -> None:
    """Check an address as written in the spec; the value of a $NAME is known only where the message is sent."""
    text = item.text.strip()
    if channel == "cmd":
        if not text:
            findings.error(item.key_place, "cmd of notify is empty", text="cmd", code="empty")
        return
    if _VARIABLE.search(text) or find_tokens(text):
        return
    if channel == "mail":
        if not _MAIL.fullmatch(text):
            message, hint = f"{shown(text)} is not a mail address", "write name@host"
            findings.error(item.place, message, text=text, hint=hint, code="notify")
        return
    if not _SCHEME.fullmatch(text) or (channel == "webhook" and not text.startswith(("https://", "http://"))):
        hint = "write https://…" if channel == "webhook" else "write service://…, as apprise's manual has it"
        message = f"{shown(text)} is not an address for {channel}"
        findings.error(item.place, message, text=text, hint=hint, code="notify")
    elif channel == "apprise" or _holds_secret(text):
        message = "this address may hold a secret, and the spec is copied into every workspace"
        hint = f"write {channel}: $NAME, and set NAME in the environment of whoever runs the study"
        findings.warning(item.place, message, text=channel, hint=hint, code="secret")


def _holds_secret(address: str) -> bool:
    """Return whether it has a password, or a long word that nobody could guess."""
    return bool(re.search(r"://[^/@]*:[^/@]*@|[/=][\w-]{20,}", address))


def _check_tokens(item: Entry, differing: set[str], findings: Findings) -> None:
    for token in find_tokens(item.text):
        if token.name in differing or token.name.endswith((".workspace", ".label")):
            message = f"$({token.name}) differs from task to task, and notify is for the whole study"
            hint = "$(MERLIN_WORKSPACE), $(SPECROOT) and your variables can be used here"
            findings.error(item.place, message, text=f"$({token.name})", hint=hint, code="token")
