"""The words of the block `notify`: what may happen to a study, and the ways to tell somebody."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal, get_args

Event = Literal["end", "finished", "failed", "stopped", "failures", "stall", "refused"]
EVENTS: tuple[str, ...] = get_args(Event)
ENDS = ("finished", "failed", "stopped")  # "end" means all of them
CHANNELS = ("cmd", "webhook", "mail", "apprise")
STALL_S = 1800.0


def lacks_apprise() -> bool:
    """True if apprise, which only one of the ways needs, is not installed here."""
    return find_spec("apprise") is None
