"""What a workspace takes on the disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def size_on_disk(folder: Path) -> int:
    """Bytes on the disk below a folder; links are not followed, and what cannot be read counts as nothing."""
    total, todo = 0, [os.fspath(folder)]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    total += found.st_blocks * 512
                    if stat.S_ISDIR(found.st_mode):
                        todo.append(entry.path)
        except OSError:
            continue
    return total
