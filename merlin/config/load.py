"""Finding the configuration: environment variables, then app.yaml in the places people keep it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from merlin.base.document.scalars import Problem
from merlin.config.model import Config, Endpoint
from merlin.config.places import (
    APP_FILE,
    SERVER_DIR,
    absolute,
    default_config_path,
    default_key_path,
    home_remedy,
    pointer_path,
)
from merlin.config.private_file import check_ours
from merlin.config.url import parse_url
from merlin.errors import ConfigError, command_line

_HOW_TO = (
    "no broker is configured\n"
    "  A private server on this machine:  merlin server start\n"
    "  A server that your site runs:      merlin config create, then edit the file it names\n"
    "  For one command:                   MERLIN_BROKER_URL=redis://:PASSWORD@HOST:6379/0"
)
_LOCALLY = "  Without servers, on this machine: add --local to merlin run, rerun or restart"


def find_config(env: Mapping[str, str] = os.environ, *, cwd: Path | None = None) -> Config | None:
    """The configuration of this user in this place, or None if there is none.

    Looks at MERLIN_BROKER_URL (with MERLIN_BACKEND_URL), MERLIN_CONFIG, what `merlin config use` chose,
    ~/.merlin/app.yaml and ./merlin_server/app.yaml, in this order; the first that exists counts.
    Raises ConfigError with every finding if that one cannot be used.
    """
    if env.get("MERLIN_BROKER_URL"):
        return _from_urls(env)
    if env.get("MERLIN_BACKEND_URL"):
        raise ConfigError("MERLIN_BACKEND_URL is set without MERLIN_BROKER_URL; set both, or neither")
    found = find_config_path(env, cwd=cwd)
    return None if found is None else load_config(found[0], env, origin=found[1])


def require_config(env: Mapping[str, str] = os.environ, *, cwd: Path | None = None) -> Config:
    """`find_config`, or ConfigError that says how to make one."""
    config = find_config(env, cwd=cwd)
    if config is None:
        raise ConfigError(_HOW_TO)
    return config


def load_config(path: Path, env: Mapping[str, str] = os.environ, *, origin: str = "named") -> Config:
    """The configuration in one app.yaml. Raises ConfigError with every finding."""
    # it loads pydantic, which a user without an app.yaml starts without
    from merlin.config.app_file import read_app_file

    return read_app_file(absolute(str(path), env), env, origin)


def find_config_path(
    env: Mapping[str, str] = os.environ, *, cwd: Path | None = None
) -> tuple[Path, str] | None:
    """The app.yaml that counts, and why it does; the URLs of the environment are not looked at.

    Raises ConfigError if a file that somebody chose is not there, or if the one here is somebody else's.
    """
    if given := env.get("MERLIN_CONFIG"):
        path = absolute(given, env)
        path = path / APP_FILE if path.is_dir() else path
        return _chosen(path, "MERLIN_CONFIG", "Choose none: unset MERLIN_CONFIG"), "MERLIN_CONFIG"
    pointer = pointer_path(env)
    if chosen := _read_pointer(pointer):
        remedy = f"Choose another: merlin config use FILE\n  Choose none: rm {shlex.quote(str(pointer))}"
        return _chosen(absolute(chosen, env), str(pointer), remedy), "merlin config use"
    if (path := default_config_path(env)).is_file():
        return path, "home directory"
    path = (cwd or Path.cwd()) / SERVER_DIR / APP_FILE
    if path.is_file():
        check_ours(path, f"If you trust it: {command_line('config', 'use', path)}")
        return path, "private server here"
    return None


def _chosen(path: Path, chooser: str, remedy: str) -> Path:
    if not path.is_file():
        raise ConfigError(f"{chooser} names {path}, which does not exist\n  {remedy}\n{_LOCALLY}")
    return path


def _read_pointer(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        remedy = home_remedy(path) or "\n  Write it again: merlin config use FILE"
        raise ConfigError(f"{path} cannot be read: {reason}{remedy}\n{_LOCALLY}") from error


def _from_urls(env: Mapping[str, str]) -> Config:
    broker = _endpoint("MERLIN_BROKER_URL", env)
    backend = _endpoint("MERLIN_BACKEND_URL", env) if env.get("MERLIN_BACKEND_URL") else broker
    if not backend.is_redis:
        variable = "MERLIN_BROKER_URL" if backend is broker else "MERLIN_BACKEND_URL"
        raise ConfigError(
            f"{variable} names RabbitMQ, and the progress of studies is kept in Redis\n"
            "  Set MERLIN_BACKEND_URL=redis://:PASSWORD@HOST:6379/0"
        )
    return Config(
        broker=broker,
        backend=backend,
        key_path=default_key_path(env),
        origin="MERLIN_BROKER_URL",
        is_key_given=bool(env.get("MERLIN_KEY_FILE")),
    )


def _endpoint(variable: str, env: Mapping[str, str]) -> Endpoint:
    try:
        return parse_url(env[variable], env)
    except Problem as problem:
        hint = f"\n  {problem.hint}" if problem.hint else ""
        raise ConfigError(f"{variable}: {problem}{hint}") from None
