"""The directory of a private server, and the files in it."""

from __future__ import annotations

import json
import secrets
import socket
from pathlib import Path

from merlin.config.model import Endpoint, Secret
from merlin.config.places import APP_FILE
from merlin.config.private_file import check_ours, make_data_dir, make_private_dir, write_private
from merlin.config.reach import addresses, is_loopback
from merlin.errors import ConfigError
from merlin.server.record import read_record
from merlin.server.settings import Settings, read_settings, write_settings

_WILDCARDS = ("0.0.0.0", "::")
_MAX_PASSWORD_BYTES = 512


class Folder:
    """Paths of one private server."""

    def __init__(self, path: Path) -> None:
        self.path = path  # absolute
        self.settings_file = path / "merlin_server.yaml"
        self.app_file = path / APP_FILE
        self.redis_conf = path / "redis.conf"
        # the part of redis.conf with the users; upstream calls its own so
        self.users_file = path / "redis.users"
        self.own_conf = path / "redis.extra.conf"  # lines that the owner adds; they win
        self.record_file = path / "merlin_server.pf"  # which process it is; upstream calls its own so
        self.log_file = path / "redis.log"

    @property
    def exists(self) -> bool:
        return self.settings_file.exists()

    def settings(self) -> Settings:
        """Raises ConfigError if there is no server here, or its description is damaged."""
        if not self.exists:
            raise ConfigError(f"no private server in {self.path}; make one: merlin server init")
        check_ours(self.settings_file, "Your own server in another directory: merlin server start --dir DIR")
        return read_settings(self.settings_file)

    def data_dir(self, settings: Settings) -> Path:
        return self.path / (settings.data_dir or "data")

    def password_file(self, settings: Settings) -> Path:
        return self.path / (settings.password_file or "redis.pass")

    def password(self, settings: Settings) -> Secret:
        """The first line of the password file. Raises ConfigError if it cannot be used."""
        path = self.password_file(settings)
        try:
            mode = path.stat().st_mode
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            remedy = "" if settings.password_file else "\n  Make a new password: merlin server init"
            raise ConfigError(f"the password file {path} cannot be read: {error}{remedy}") from error
        if mode & 0o077:
            raise ConfigError(f"other users can read the password file {path}\n  Close it: chmod 600 {path}")
        password = lines[0].strip() if lines else ""
        if not password or len(password) > _MAX_PASSWORD_BYTES or not password.isprintable():
            raise ConfigError(
                f"the password file {path} needs one line of 1 to {_MAX_PASSWORD_BYTES} characters"
            )
        return Secret(password)

    def endpoint(self, settings: Settings) -> Endpoint:
        """How the server is reached."""
        return _endpoint(settings.host, settings.port, self.password(settings))

    def running_endpoint(self, settings: Settings) -> Endpoint:
        """How the server that was started last is reached, whatever was configured since."""
        record = read_record(self.record_file)
        if record is None or not record.port:
            return self.endpoint(settings)
        return _endpoint(record.bound_to, record.port, Secret(record.password))


def _endpoint(bound_to: str, port: int, password: Secret) -> Endpoint:
    return Endpoint(kind="redis", host=reachable_host(bound_to), port=port, password=password)


def make_folder(folder: Folder, settings: Settings) -> None:
    """Make the directory with its description and a random password. What exists is kept."""
    make_private_dir(folder.path)
    make_password(folder, settings)
    folder.password(settings)
    make_data_dir(folder.data_dir(settings))
    write_settings(settings, folder.settings_file)


def make_password(folder: Folder, settings: Settings) -> None:
    """Write a random password, unless there is one or it lies in a file of the owner's."""
    path = folder.password_file(settings)
    if not settings.password_file and not path.exists():
        write_private(path, secrets.token_urlsafe(32) + "\n")


def write_app_file(folder: Folder, settings: Settings) -> None:
    """Write the app.yaml with which Merlin finds this server."""
    password_file = json.dumps(str(folder.password_file(settings)))
    lines = ["# Written by `merlin server start`; use it from elsewhere with `merlin config use`."]
    for block in ("broker", "results_backend"):
        lines += [
            f"{block}:",
            "    name: redis",
            f"    server: {json.dumps(reachable_host(settings.host))}",
            f"    port: {settings.port}",
            f"    password: {password_file}",
            "    db_num: 0",
        ]
    write_private(folder.app_file, "\n".join(lines) + "\n")


def reachable_host(host: str) -> str:
    """The name or address under which others reach what is bound to `host`.

    If `host` is all addresses, it is this machine's name, if others can use the address of this name. In many a
    /etc/hosts that is 127.0.0.1: then it is the address from which connections to other machines would come.
    """
    if host not in _WILDCARDS:
        return host
    own = (socket.getfqdn(), socket.gethostname())
    names = [name for name in own if addresses(name) and not is_loopback(name)]
    return names[0] if names else _outgoing_address(host) or socket.gethostname()


def _outgoing_address(wildcard: str) -> str:
    """Our address for connections to other machines, "" if there is none; nothing is sent."""
    family, elsewhere = (socket.AF_INET6, "2001:db8::1") if ":" in wildcard else (socket.AF_INET, "192.0.2.1")
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as end:
            end.connect((elsewhere, 9))
            return str(end.getsockname()[0])
    except OSError:
        return ""
