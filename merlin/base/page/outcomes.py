"""The outcomes of all planned tasks, as a bar and in words."""

from __future__ import annotations

from collections.abc import Mapping


def counts_bar(counts: Mapping[str, int], planned: int) -> str:
    """planned = ok + failed + …; `counts` by outcome, in the order in which they are shown."""
    parts = "".join(f'<span class="{o}" style="flex-grow:{num}"></span>' for o, num in counts.items() if num)
    words = " + ".join(f'<span class="dot {o}"></span>{o} <b>{num:,}</b>' for o, num in counts.items())
    sign = "=" if planned == sum(counts.values()) else "≠"
    return (
        f'<div class="bar" aria-hidden="true">{parts}</div>\n'
        f'<p class="outcomes">planned <b>{planned:,}</b> {sign} {words}</p>'
    )
