"""A bar of tasks by outcome, in characters, for `merlin status` and the screens."""

from __future__ import annotations

from collections.abc import Mapping

from merlin.plan.outcome_counts import OutcomeCounts

FILLS = {"ok": "█", "failed": "▓", "skipped": "▒", "missing": "·"}
COLOURS = {"ok": "green", "failed": "red", "skipped": "yellow", "missing": ""}


def bar(numbers: OutcomeCounts, width: int, fills: Mapping[str, str] = FILLS) -> list[tuple[str, str]]:
    """Pieces (outcome, text) of a bar, together `width` long; every outcome that occurs has a cell."""
    counts = {kind: getattr(numbers, kind) for kind in fills}
    cells = {kind: max(num > 0, num * width // max(1, numbers.planned)) for kind, num in counts.items()}
    largest = max(cells, key=lambda kind: cells[kind])
    cells[largest] += width - sum(cells.values()) if numbers.planned else 0
    return [(kind, fills[kind] * num) for kind, num in cells.items()]
