"""How often tests repeat what is drawn at random: few times in `make test`, many times in `make soak`."""

from __future__ import annotations

import os

IS_LONG = bool(os.environ.get("MERLIN_SOAK_LONG"))


def repeats(usual: int, at_length: int) -> int:
    """The first number, or with MERLIN_SOAK_LONG=1 the second."""
    return at_length if IS_LONG else usual
