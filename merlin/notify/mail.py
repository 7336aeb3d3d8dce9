"""Sends notices by mail: by the machine's `sendmail`, or else by a mail server on this machine."""

from __future__ import annotations

import shutil
import smtplib
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from pathlib import Path

from merlin.base.commands import run_command
from merlin.base.processes import user_name
from merlin.errors import NotifyError
from merlin.notify.addresses import filled
from merlin.notify.notice import Message

_USUAL_PLACES = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
_SMTP_PORT = 25


def send(to: Sequence[str], message: Message, environment: Mapping[str, str], limit_s: float) -> None:
    letter = _letter([filled(address, environment) for address in to], message)
    program = shutil.which("sendmail", path=environment.get("PATH")) or next(
        (place for place in _USUAL_PLACES if Path(place).is_file()), ""
    )
    if program:
        _by_program(program, letter, environment, limit_s)
    else:
        _by_server(letter, limit_s)


def _letter(to: Sequence[str], message: Message) -> EmailMessage:
    letter = EmailMessage()
    try:
        letter["To"] = ", ".join(to)
        letter["Subject"] = f"[merlin] {message.title}"
        letter["Date"] = format_datetime(datetime.fromtimestamp(message.notice.time, UTC))
    except ValueError as error:  # a line break, or something that is no address
        raise NotifyError(f"the mail cannot be addressed: {error}") from error
    letter["Auto-Submitted"] = "auto-generated"
    letter.set_content(message.text.encode("utf-8", "replace").decode() + "\n")
    return letter


def _by_program(program: str, letter: EmailMessage, environment: Mapping[str, str], limit_s: float) -> None:
    try:
        # -t: to those named in the letter; -i: a line with a dot alone does not end it
        ended = run_command(
            [program, "-t", "-i"], limit_s=limit_s, environment=environment, given=letter.as_string()
        )
    except OSError as error:
        raise NotifyError(f"{program} cannot be started: {error}") from error
    if ended.code != 0:
        how = f"took longer than {limit_s:g} s" if ended.code is None else f"ended with {ended.code}"
        said = " ".join(ended.error.split())[-300:]
        raise NotifyError(f"{program} {how}{f': {said}' if said else ''}")


def _by_server(letter: EmailMessage, limit_s: float) -> None:
    letter["From"] = f"{user_name()}@{socket.getfqdn()}"  # sendmail sets a better sender by itself
    try:
        with smtplib.SMTP("localhost", _SMTP_PORT, timeout=limit_s) as server:
            server.send_message(letter)
    except (OSError, smtplib.SMTPException) as error:
        raise NotifyError(
            f"there is no sendmail on {socket.gethostname()}, and no mail server on its port {_SMTP_PORT} "
            f"({error}); use a webhook, or a cmd that sends mail"
        ) from error
