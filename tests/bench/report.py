"""The table in docs/benchmarks.md."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
START, END = "<!-- bench:start -->", "<!-- bench:end -->"
PREFACE = f"""# Benchmarks

`make bench` writes the table below. Each figure is the median of several runs of the whole command; where there is an
alternative it ran in the same session, interleaved A B A B, and the ratio is the median of the ratios of neighbours.
Memory is the peak of the largest process. "Floor" is what the project holds itself to; no test asserts a time.

{START}
{END}
"""


@dataclass(frozen=True)
class Row:
    what: str
    ours: str
    other: str
    ratio: str
    floor: str
    memory: str


def mb(timings: Sequence[Any]) -> str:
    return f"{max(t.peak_bytes for t in timings) / 1e6:.0f} MB"


def render(rows: Sequence[Row], rounds: int) -> str:
    head = f"Measured {date.today()}: Python {platform.python_version()}, {os.cpu_count()} cores, {rounds} rounds.\n\n"
    lines = [
        "| what | ours | alternative | ratio | floor | peak memory |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [f"| {r.what} | {r.ours} | {r.other} | {r.ratio} | {r.floor} | {r.memory} |" for r in rows]
    return head + "\n".join(lines)


def write(rows: Sequence[Row], rounds: int) -> None:
    text = DOCS.read_text() if DOCS.is_file() else PREFACE
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    DOCS.write_text(f"{before}{START}\n{render(rows, rounds)}\n{END}{after}")
