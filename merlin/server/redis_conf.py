"""The redis.conf of a private server. It holds the password, so that no command line has to."""

from __future__ import annotations

import re

from merlin.server.folder import Folder
from merlin.server.settings import Settings

_PLAIN = re.compile(r"[A-Za-z0-9_./:-]+")


def render(folder: Folder, settings: Settings) -> str:
    """The text of redis.conf."""
    lines = [
        "# Written by `merlin server start`, anew each time; your own lines go into redis.extra.conf.",
        f"bind {word(settings.host)}",
        f"port {settings.port}",
        "protected-mode yes",
        f"requirepass {word(folder.password(settings).reveal())}",
        "daemonize no",
        f"dir {word(_data_dir(folder, settings))}",
        f"logfile {quoted(str(folder.log_file))}",
        "appendonly yes",
        f"appendfsync {settings.append_sync}",
        f"appendfilename {quoted(settings.append_file)}",
        f"save {settings.snapshot_seconds} {settings.snapshot_changes}",
        f"dbfilename {word(settings.snapshot_file)}",
        "maxmemory-policy noeviction",  # a full server must refuse, never forget
        "tcp-keepalive 60",
        "timeout 0",
        f"include {quoted(str(folder.users_file))}",
    ]
    if folder.own_conf.exists():
        lines.append(f"include {quoted(str(folder.own_conf))}")
    return "\n".join(lines) + "\n"


def render_users(settings: Settings) -> str:
    """The text of redis.users, which redis.conf includes; it holds SHA-256 sums of the passwords."""
    users = [f"user {name} on #{digest} ~* &* +@all" for name, digest in sorted(settings.users.items())]
    return "\n".join(["# Written by `merlin server`; change it with `merlin server config`.", *users, ""])


def _data_dir(folder: Folder, settings: Settings) -> str:
    """Relative to the directory in which Redis starts, as upstream has it; absolute for a container."""
    path, start = folder.data_dir(settings), folder.path.parent
    is_container = settings.engine not in ("auto", "system", "wheel")
    return str(path) if is_container or not path.is_relative_to(start) else f"./{path.relative_to(start)}"


def word(text: str) -> str:
    """A word as Redis reads it, quoted if it has to be."""
    return text if _PLAIN.fullmatch(text) else quoted(text)


def quoted(text: str) -> str:
    """A word as Redis reads it between double quotes."""
    out = []
    for byte in text.encode():
        character = chr(byte)
        if character in '"\\':
            out.append("\\" + character)
        elif 0x20 <= byte < 0x7F:
            out.append(character)
        else:
            out.append(f"\\x{byte:02x}")
    return '"' + "".join(out) + '"'
