"""The table in docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
START, END = "<!-- bench:start -->", "<!-- bench:end -->"
KEPT = Path(__file__).resolve().with_name("measured.json")  # what the table is drawn from


@dataclass(frozen=True)
class Row:
    what: str
    ours: str
    other: str
    ratio: str
    floor: str
    memory: str


def floor(text: str, is_met: bool) -> str:
    return text if is_met else f"{text}, not met"


def mb(timings: Sequence[Any]) -> str:
    return f"{max(t.peak_bytes for t in timings) / 1e6:.0f} MB"


def save(name: str, rows: Sequence[Row], rounds: int, order: Sequence[str]) -> None:
    """Keep the rows of one measurement, and draw the table anew from the newest of each."""
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    kept[name] = {
        "measured": str(date.today()),
        "machine": f"Python {platform.python_version()}, {os.cpu_count()} cores",
        "rounds": rounds,
        "rows": [asdict(r) for r in rows],
    }
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = DOCS.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{START}\n{_table([kept[n] for n in order if n in kept])}\n{END}{after}")


def _table(measurements: Sequence[dict[str, Any]]) -> str:
    machines = sorted({m["machine"] for m in measurements})
    lines = [
        f"Measured with {'; '.join(machines)}. In brackets: how many runs a median is of.",
        "",
        "| what | ours | alternative | ratio | floor | peak memory | measured |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for m in measurements:
        when = f"{m['measured']} ({m['rounds']})"
        lines += [f"| {' | '.join([*Row(**r).__dict__.values(), when])} |" for r in m["rows"]]
    return "\n".join(lines)
