"""``$(LAUNCHER)[…]``: how many nodes and processes a launcher in a script asks for."""

from __future__ import annotations

import re

from merlin.base.document.scalars import Problem, shown

LAUNCHER = re.compile(r"\$\(LAUNCHER\)(?:\[(?P<allocation>[^\]\n]*)\])?")
_NUMBER = r"(\d+|\$\([^()\s]+\))"  # or a token that stands for one
_NODES_PROCS = re.compile(rf"\s*{_NUMBER}\s*,\s*{_NUMBER}\s*")
_PART = re.compile(rf"\s*{_NUMBER}\s*([np])\s*")


def allocations(text: str) -> list[str]:
    """What is in each ``[…]`` behind $(LAUNCHER)."""
    return [match["allocation"] for match in LAUNCHER.finditer(text) if match["allocation"] is not None]


def allocated(allocation: str) -> tuple[str, str]:
    """Nodes and processes of ``2n, 8p``, ``8p``, or Maestro's older ``2, 8``: numbers, or tokens that stand for them.

    The nodes are "" if there are none. Raises Problem.
    """
    if match := _NODES_PROCS.fullmatch(allocation):
        return match[1], match[2]
    parts = [_PART.fullmatch(part) for part in allocation.split(",")]
    numbers = {part[2]: part[1] for part in parts if part}
    if len(numbers) != len(parts) or "p" not in numbers:
        raise Problem(
            f"$(LAUNCHER)[{allocation}] does not say how many processes to start: {shown(allocation)}",
            "write $(LAUNCHER)[8p] or, with the number of nodes, $(LAUNCHER)[2n, 8p]",
        )
    return numbers.get("n", ""), numbers["p"]
