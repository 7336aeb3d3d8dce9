"""Entries in Redis that cannot be used. Anybody with access to Redis may have written them."""

from __future__ import annotations

import logging

log = logging.getLogger("merlin.worker")

MAX_DAMAGED = 100  # entries that are logged


class DamagedEntries:
    """Entries that cannot be used. Each is skipped, logged once, and shown by `merlin doctor`."""

    def __init__(self) -> None:
        self.found: dict[str, str] = {}  # where -> why

    def note(self, where: str, why: object) -> None:
        if where not in self.found and len(self.found) < MAX_DAMAGED:
            self.found[where] = str(why)
            log.error("left out: %s in Redis: %s", ascii(where[:200]), ascii(str(why)[:200]))
