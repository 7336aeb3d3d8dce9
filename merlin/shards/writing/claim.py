"""One writer at a time in a directory: exports and imports keep others out while they run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from merlin.errors import UsageError


def claim_directory(directory: Path, what: str) -> int:
    """Lock a directory until the returned descriptor is closed, or the process ends.

    Raises UsageError if another process has it. File systems without locks let everybody in.
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"another {what} is being written to {directory}; wait for it") from None
    except OSError:
        pass
    return descriptor
