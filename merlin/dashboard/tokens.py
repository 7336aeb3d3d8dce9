"""The token that opens the dashboard: a file that only its owner can read, made once."""

from __future__ import annotations

import hmac
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from merlin.config.places import merlin_home
from merlin.config.private_file import write_private
from merlin.errors import ConfigError

TOKEN_FILE = "dashboard-token"
TICKET_S = 60.0
_NUM_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]{32,128}")


class Token(Struct, frozen=True):
    """The token, and what is derived from it: a cookie, and the text by which our pages prove that they ask."""

    text: str

    def __repr__(self) -> str:
        return "Token(******)"

    @property
    def cookie(self) -> str:
        return self._derived("cookie")

    @property
    def csrf(self) -> str:
        return self._derived("csrf")

    def _derived(self, purpose: str) -> str:
        return hmac.digest(self.text.encode(), f"merlin dashboard {purpose}".encode(), "sha256").hex()


class Ticket:
    """A token that opens once, soon: for the command line of a browser, which all users of the machine can read."""

    def __init__(self) -> None:
        self._text, self._until = "", 0.0

    def issue(self) -> str:
        self._text, self._until = secrets.token_urlsafe(_NUM_BYTES), time.monotonic() + TICKET_S
        return self._text

    def take(self, given: str) -> bool:
        """True for the text that was issued last, if it has not been used or become too old."""
        if not self._text or not same(given, self._text) or time.monotonic() > self._until:
            return False
        self._text = ""
        return True


def same(given: str, expected: str) -> bool:
    """True if both are the same; the time that it takes does not show where they differ."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def default_token_file(env: Mapping[str, str]) -> Path:
    return merlin_home(env) / TOKEN_FILE


def read_or_make_token(path: Path) -> Token:
    """The token in the file `path`, which is made if there is none.

    Raises ConfigError if it cannot be read or written, is no token, or if others can get at it.
    """
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, secrets.token_urlsafe(_NUM_BYTES) + "\n")
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            _check_access(path, os.fstat(descriptor))
            text = os.read(descriptor, 4096).decode("ascii", "replace").strip()
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfigError(f"the token in {path} cannot be read or made: {error.strerror}") from error
    if not _TOKEN.fullmatch(text):
        raise ConfigError(
            f"{path} holds no token (32 to 128 letters, digits, '-' and '_'); delete it, and a new one is made"
        )
    return Token(text)


def _check_access(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the token {path} is no plain file")
    if status.st_uid not in (os.geteuid(), 0):
        raise ConfigError(f"the token {path} belongs to another user; choose another file: --token-file FILE")
    if status.st_mode & 0o077:
        raise ConfigError(
            f"other users can get at the token {path} (mode {stat.S_IMODE(status.st_mode):04o}), and who has it "
            "sees your studies.\n  Delete it, and a new one is made"
        )
