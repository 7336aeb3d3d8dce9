"""Sends notices to a command of the user: facts are in its environment, and as JSON on its standard input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from merlin.base.commands import run_command
from merlin.errors import NotifyError
from merlin.notify.addresses import without_secrets
from merlin.notify.notice import Message

_TAIL_CHARS = 300


def send(to: Sequence[str], message: Message, environment: Mapping[str, str], limit_s: float) -> None:
    workspace = message.notice.workspace
    for script in to:
        try:
            ended = run_command(
                ["/bin/sh", "-c", script],
                limit_s=limit_s,
                environment={**environment, **message.variables()},
                given=json.dumps(message.facts()),
                directory=workspace if Path(workspace or "/nowhere").is_dir() else None,
            )
        except OSError as error:
            raise NotifyError(f"the command cannot be started: {error}") from error
        if ended.code is None:
            raise NotifyError(f"the command took longer than {limit_s:g} s, and was killed")
        if ended.code != 0:
            said = without_secrets(" ".join(ended.error.split()), to, environment)[-_TAIL_CHARS:]
            raise NotifyError(f"the command ended with {ended.code}{f': {said}' if said else ''}")
