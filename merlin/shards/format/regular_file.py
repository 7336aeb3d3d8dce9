"""Read small files from directories that anybody may have made.

Only regular files are read; anything else is refused, so that nobody waits for it.
"""

from __future__ import annotations

import errno
import json
import stat
from pathlib import Path
from typing import Any

MAX_TEXT_BYTES = 64 << 20


def require_regular(path: Path) -> None:
    """Raise OSError unless it is a regular file: a pipe may never end, and a device may never stop."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))


def read_bytes(path: Path, most: int = MAX_TEXT_BYTES) -> bytes:
    """The content of a regular file; ValueError if it has more than `most` bytes."""
    require_regular(path)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"it has more than {most:,} bytes")
    return content


def read_json(path: Path) -> Any:
    """The value in a JSON file. Raises OSError, and ValueError for what is no JSON."""
    try:
        return json.loads(read_bytes(path).decode("utf-8"))
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error
