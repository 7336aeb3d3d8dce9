"""The redis.conf of a private server. It holds the password, so that no command line has to."""

from __future__ import annotations

from merlin.server.folder import Folder
from merlin.server.settings import Settings


def render(folder: Folder, settings: Settings) -> str:
    """The text of redis.conf."""
    lines = [
        "# Written by `merlin server start`, anew each time; your own lines go into redis.extra.conf.",
        f"bind {quoted(settings.host)}",
        f"port {settings.port}",
        "protected-mode yes",
        f"requirepass {quoted(folder.password(settings).reveal())}",
        "daemonize no",
        f"dir {quoted(str(folder.data_dir(settings)))}",
        f"logfile {quoted(str(folder.log_file))}",
        "appendonly yes",
        f"appendfsync {settings.append_sync}",
        f"appendfilename {quoted(settings.append_file)}",
        f"save {settings.snapshot_seconds} {settings.snapshot_changes}",
        f"dbfilename {quoted(settings.snapshot_file)}",
        "maxmemory-policy noeviction",  # a full server must refuse, never forget
        "tcp-keepalive 60",
        "timeout 0",
    ]
    lines += [f"user {name} on #{digest} ~* &* +@all" for name, digest in sorted(settings.users.items())]
    if folder.own_conf.exists():
        lines.append(f"include {quoted(str(folder.own_conf))}")
    return "\n".join(lines) + "\n"


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
