"""Reading one block of app.yaml, key by key, with a place for everything that is wrong with it."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from merlin.base.document.findings import NOWHERE, Findings, Place, allowed, did_you_mean
from merlin.base.document.scalars import Problem, to_int
from merlin.base.document.tree import Entry, to_data
from merlin.config.model import NO_SECRET, Secret
from merlin.config.places import absolute, merlin_home

_PLACEHOLDER = re.compile(r"<[^<>]*>")
_FILE_NAME = re.compile(r"^[~$]|/|\.(pass|passwd|password|pw|pwd|secret|key|txt)$")
_MAX_PASSWORD_FILE_BYTES = 65536


def looks_like_a_file(text: str) -> bool:
    """Whether a password is rather the name of a file that holds one."""
    return _FILE_NAME.search(text) is not None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What paths in the file are relative to, and where secrets may lie."""

    env: Mapping[str, str]
    folder: Path  # of app.yaml
    others_can_read: bool = False  # app.yaml itself
    certs: Path | None = None  # celery.certs


class Block:
    """One mapping of app.yaml."""

    def __init__(self, name: str, entry: Entry, findings: Findings, around: Surroundings) -> None:
        self.name = name
        self.entry = entry
        self.findings = findings
        self.around = around

    def error(self, key: str, message: str, hint: str = "", code: str = "value") -> None:
        """An error at a key of this block, or at the block if it does not have the key."""
        self.findings.error(self._place(key), f"{self.name}.{key}: {message}", hint=hint, code=code)

    def warning(self, key: str, message: str, hint: str = "", code: str = "value") -> None:
        self.findings.warning(self._place(key), f"{self.name}.{key}: {message}", hint=hint, code=code)

    def _place(self, key: str) -> Place:
        item = self.entry.get(key)
        for place in (item.place, item.key_place, self.entry.key_place, self.entry.place):
            if place != NOWHERE:
                return place
        return (1, 1)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self.entry.get(key).content not in (None, "")

    def check_keys(self, known: Iterable[str]) -> None:
        """A key that looks like a slip is an error; any other unknown one, a warning (upstream ignores them)."""
        names = list(known)
        for key, item in self.entry.mapping.items():
            if key in names:
                continue
            slip = did_you_mean(key, names)
            report = self.findings.error if slip else self.findings.warning
            report(
                item.key_place,
                f"key {key!r} in {self.name} has no meaning here",
                hint=allowed(key, names),
                code="unknown-key",
            )

    def text(self, *keys: str) -> str:
        """The text of the first of these keys that has a value; "" if none has."""
        for key in keys:
            if not self.has(key):
                continue
            item = self.entry.get(key)
            if not isinstance(item.content, str):
                self.error(key, "must be one value, not a list or a mapping", code="type")
                return ""
            if _PLACEHOLDER.fullmatch(item.text.strip()):
                self.error(
                    key,
                    f"{item.text.strip()} is still the placeholder of the template",
                    "put your own value there",
                )
                return ""
            return item.text.strip()
        return ""

    def number(self, key: str, default: int, least: int, most: int) -> int:
        text = self.text(key)
        if not text:
            return default
        try:
            value = to_int(to_data(self.entry.get(key)), least)
        except Problem as problem:
            self.error(key, str(problem), problem.hint)
            return default
        if value > most:
            self.error(key, f"must be at most {most}, not {value}")
            return default
        return value

    def password(self, key: str = "password") -> Secret:
        """The first line of the file that is named; or the value itself, if it does not look like a file's name.

        Upstream takes any value for the password where there is no such file.
        """
        text = self.text(key)
        if not text:
            return NO_SECRET
        around = self.around
        folders = [merlin_home(around.env), around.folder, *([around.certs] if around.certs else [])]
        for path in (absolute(text, around.env), *(folder / text for folder in folders)):
            if _exists(path):
                return self._password_in(key, path)
        if looks_like_a_file(text):
            self.error(
                key,
                "there is no such password file",
                "name a file whose first line is the password: its path, or its name if it is in ~/.merlin; "
                "a password that looks like a path must be in a file",
                "missing-file",
            )
            return NO_SECRET
        if around.others_can_read:
            self.warning(
                key,
                "other users can read this file, and a password stands in it",
                f"chmod 600 {self.findings.file}",
                "open-secret",
            )
        return Secret(text)

    def _password_in(self, key: str, path: Path) -> Secret:
        try:
            with path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                raw = file.read(_MAX_PASSWORD_FILE_BYTES) if stat.S_ISREG(mode) else b""
            lines = raw.decode().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            self.error(key, f"the password file {path} cannot be read: {reason}", code="unreadable")
            return NO_SECRET
        if not lines or not lines[0].strip():
            self.error(key, f"the password file {path} has no password in its first line", code="empty")
            return NO_SECRET
        if mode & 0o077:
            self.warning(
                key, f"other users can read the password file {path}", f"chmod 600 {path}", "open-secret"
            )
        return Secret(lines[0].strip())

    def file(self, *keys: str) -> str:
        """The absolute path of a file that exists; "" if no key names one."""
        text = self.text(*keys)
        if not text:
            return ""
        around = self.around
        key = next(key for key in keys if self.has(key))
        path = absolute(text, around.env, around.folder)
        certs = [around.certs / path.name] if around.certs else []
        for candidate in (path, *certs):
            if _exists(candidate):
                return str(candidate)
        where = " and ".join(map(str, (path, *certs)))
        self.error(key, f"the file does not exist: looked for {where}", code="missing-file")
        return ""


def _exists(path: Path) -> bool:
    """Whether it is there and no directory; a text that cannot be a path is not."""
    try:
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False
