"""Where a user's configuration is kept, and how paths in it are meant."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

APP_FILE = "app.yaml"
SERVER_DIR = "merlin_server"
POINTER_FILE = "config_path.txt"  # written by `merlin config use`, as upstream does
KEY_FILE = "merlin.key"

_FILE_NAME = re.compile(r"^[~$]|/|\.(pass|passwd|password|pw|pwd|secret|key|txt)$")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def home(env: Mapping[str, str]) -> Path:
    """The home directory of the environment, which need not be the one of this process."""
    return Path(env["HOME"]) if env.get("HOME") else Path.home()


def merlin_home(env: Mapping[str, str]) -> Path:
    return home(env) / ".merlin"


def home_remedy(path: Path) -> str:
    """What to do if a file in ~/.merlin cannot be used because the home is somebody else's; "" if it is not that."""
    folder = path.parent
    there = folder if os.path.lexists(folder) else folder.parent  # Path.exists raises where nobody may look
    if folder.name != ".merlin" or os.access(there, os.W_OK | os.X_OK):
        return ""
    return f"\n  Make {folder} yours, or name another home: export HOME=DIR"


def pointer_path(env: Mapping[str, str]) -> Path:
    return merlin_home(env) / POINTER_FILE


def default_config_path(env: Mapping[str, str]) -> Path:
    return merlin_home(env) / APP_FILE


def default_key_path(env: Mapping[str, str]) -> Path:
    """The key of MERLIN_KEY_FILE, or the one in ~/.merlin."""
    given = env.get("MERLIN_KEY_FILE")
    return absolute(given, env) if given else merlin_home(env) / KEY_FILE


def absolute(text: str, env: Mapping[str, str], base: Path | None = None) -> Path:
    """A path with `~` and variables of `env` filled in, taken relative to `base` or to the current directory."""
    filled = _VARIABLE.sub(lambda match: env.get(match[1] or match[2], match[0]), text)
    if filled == "~" or filled.startswith("~/"):
        filled = str(home(env)) + filled[1:]
    with contextlib.suppress(RuntimeError):  # ~NAME, where no user has this name
        filled = str(Path(filled).expanduser())
    return Path(os.path.abspath((base or Path.cwd()) / filled))  # noqa: PTH100 - keeps links


def looks_like_a_file(password: str) -> bool:
    """True if a password looks like the name of a file that holds the password."""
    return _FILE_NAME.search(password) is not None
