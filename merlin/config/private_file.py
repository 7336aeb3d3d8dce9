"""Files and directories that nobody but their owner may look into."""

from __future__ import annotations

import os
from pathlib import Path

from merlin.base.files import write_text
from merlin.config.places import home_remedy
from merlin.errors import ConfigError


def make_parent(path: Path) -> None:
    """Make the directory of a file, of mode 0700 if it is new. Raises ConfigError if that is impossible."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = f"{error.strerror}{home_remedy(path)}"
        raise ConfigError(f"the directory {path.parent} cannot be made: {reason}") from error


def write_private(path: Path, text: str) -> None:
    """Write `text` to a file of mode 0600, atomically. Raises ConfigError if that is impossible."""
    try:
        write_text(path, text, mode=0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}{home_remedy(path)}") from error


def check_ours(path: Path, remedy: str) -> None:
    """Raise ConfigError for a file that another user made, or whose directory another user made.

    Such a file could choose the server, the key, or the program to run, only because it is in the current directory.
    """
    for place in (path.parent, path):
        owner = place.stat().st_uid
        if owner not in (os.geteuid(), 0):
            raise ConfigError(
                f"{place} belongs to another user (id {owner}) and is not used by itself\n  {remedy}"
            )


def make_data_dir(path: Path) -> None:
    """Make a directory of mode 0700; one that exists stays as it is, but nobody else may write into it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except OSError as error:
        raise ConfigError(f"the directory {path} cannot be made: {error.strerror}") from error
    if status.st_mode & 0o022:
        raise ConfigError(f"other users can write into {path}\n  Close it: chmod go-w {path}")


def make_private_dir(path: Path) -> None:
    """Make a directory of mode 0700; one that exists must be ours, and is closed to others.

    Raises ConfigError for a directory of another user, or a path that is taken.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.geteuid():
            raise ConfigError(f"the directory {path} belongs to another user; choose another one")
        if status.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"the directory {path} cannot be made: {error.strerror}") from error
