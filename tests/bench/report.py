"""The tables in docs/benchmarks.md."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
START, END = "<!-- bench:start -->", "<!-- bench:end -->"
KEPT = Path(__file__).resolve().with_name("measured.json")  # what the tables are drawn from
TITLES = ("what", "ours", "alternative", "ratio", "floor", "memory", "measured")
USUAL_ROUNDS = 3


@dataclass(frozen=True)
class Row:
    what: str
    ours: str
    other: str = ""
    ratio: str = ""
    floor: str = ""
    memory: str = ""


def floor(text: str, is_met: bool) -> str:
    return text if is_met else f"{text}, not met"


def mb(timings: Sequence[Any]) -> str:
    return f"{max(t.peak_bytes for t in timings) / 1e6:.0f} MB"


def save(name: str, rows: Sequence[Row], rounds: int, topics: Mapping[str, Collection[str]]) -> None:
    """Keep the rows of one measurement, and draw the tables anew from the newest of each."""
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    kept[name] = {
        "measured": str(date.today()),
        "machine": f"Python {platform.python_version()}, {os.cpu_count()} cores",
        "rounds": rounds,
        "rows": [asdict(r) for r in rows],
    }
    KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    draw(kept, topics)


def draw(kept: Mapping[str, Any], topics: Mapping[str, Collection[str]]) -> None:
    text = DOCS.read_text()
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{START}\n{tables(kept, topics)}\n{END}{after}")


def tables(kept: Mapping[str, Any], topics: Mapping[str, Collection[str]]) -> str:
    """A table for each topic, with the measurements of these names."""
    machines = sorted({measurement["machine"] for measurement in kept.values()})
    parts = ["## Results", f"Measured with {'; '.join(machines)}."]
    for topic, names in topics.items():
        if found := {name: kept[name] for name in names if name in kept}:
            parts += [f"### {topic}", _command(found), _table(list(found.values()))]
    return "\n\n".join(parts)


def _judged(row: Row) -> Row:
    """The row, whose floor says so if its ratio does not reach it."""
    least, found = re.fullmatch(r"≥ ([\d.]+)×", row.floor), re.match(r"([\d.]+)×", row.ratio)
    is_missed = least is not None and found is not None and float(found[1]) < float(least[1])
    return replace(row, floor=floor(row.floor, not is_missed))


def _command(names: Collection[str]) -> str:
    return f'`make bench ROWS="{" ".join(names)}"`'


def _table(measurements: Sequence[dict[str, Any]]) -> str:
    """The rows of several measurements, without columns that are empty."""
    lines = [TITLES]
    for m in measurements:
        when = m["measured"] if m["rounds"] == USUAL_ROUNDS else f"{m['measured']} ({m['rounds']})"
        lines += [(*astuple(_judged(Row(**r))), when) for r in m["rows"]]
    shown = [i for i in range(len(TITLES)) if any(line[i] for line in lines[1:])]
    lines.insert(1, ("---",) * len(TITLES))
    return "\n".join(f"| {' | '.join(line[i] for i in shown)} |" for line in lines)
