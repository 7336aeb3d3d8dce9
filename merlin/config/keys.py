"""The user's key: a file that only its owner can read, made once and never printed."""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import secrets
import shlex
import stat
from pathlib import Path

from merlin.base.files import create_text
from merlin.config.places import KEY_FILE, home_remedy
from merlin.errors import ConfigError

KEY_BYTES = 32
_MAX_FILE_BYTES = 4096


def read_key(path: Path) -> bytes:
    """The 32 bytes of the key in `path`.

    Raises ConfigError if there is none, if it is not a key, or if anybody but its owner could read or change it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise ConfigError(f"no key in {path}; make one with: merlin config create") from None
    except OSError as error:
        raise ConfigError(f"the key in {path} cannot be read: {error.strerror}") from error
    try:
        _check_access(path, os.fstat(descriptor))
        raw = os.read(descriptor, _MAX_FILE_BYTES)
    finally:
        os.close(descriptor)
    return _decode(raw, path)


def make_key(path: Path) -> bytes:
    """The key in `path`, made if there is none yet; of several processes that make it at once, one wins."""
    if not os.path.exists(path):  # noqa: PTH110 - False in a directory of somebody else, too
        if os.path.islink(path):  # noqa: PTH114
            raise ConfigError(
                f"the key {path} is a link to {path.readlink()}, which does not exist\n"
                f"  Put your key back there; or, if it is lost, remove the link (rm {shlex.quote(str(path))}), "
                "make a new key (merlin config create), and start running workers again"
            )
        _create(path)
    return read_key(path)


def given_key(path: Path) -> bytes:
    """The key in the file that MERLIN_KEY_FILE names. None is made: nobody else would have a new key."""
    if not path.exists():
        raise ConfigError(
            f"MERLIN_KEY_FILE names {path}, which does not exist\n"
            f"  Copy your key there (scp -p), or unset MERLIN_KEY_FILE to use ~/.merlin/{KEY_FILE}; "
            "merlin config create makes a new one"
        )
    return read_key(path)


def _create(path: Path) -> None:
    """Write a new key, unless another process is faster."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            create_text(path, secrets.token_hex(KEY_BYTES) + "\n", mode=0o600)
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be written: {error.strerror}{home_remedy(path)}") from error


def _check_access(path: Path, status: os.stat_result) -> None:
    """Raise ConfigError unless it is a plain file of ours (or root's) that nobody else can read or write."""
    if not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"the key {path} is not a plain file")
    me = os.geteuid()
    if me != 0 and status.st_uid not in (me, 0):
        raise ConfigError(f"the key {path} belongs to another user; make your own: merlin config create")
    shared = stat.S_IMODE(status.st_mode) & 0o077
    if shared:
        raise ConfigError(
            f"other users can get at the key {path} (mode {stat.S_IMODE(status.st_mode):04o}), and who has the key "
            f"can run commands as you.\n  Close it: chmod 600 {path}\n  If somebody may have read it, "
            "delete it, make a new one (merlin config create), and start running workers again"
        )


def _decode(raw: bytes, path: Path) -> bytes:
    """Our keys are 64 hexadecimal digits; upstream's are 32 bytes in URL-safe base64."""
    text = raw.strip()
    try:
        key = binascii.unhexlify(text) if len(text) == 2 * KEY_BYTES else base64.urlsafe_b64decode(text)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        what = "is empty" if not text else "holds no key (64 hexadecimal digits)"
        raise ConfigError(f"the key file {path} {what}; delete it and make a new one: merlin config create")
    return key
