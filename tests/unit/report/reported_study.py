"""A prepared study, records of a ledger written by hand, and a training run, for reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np

from merlin.ledger.records import ChunkRecord, EventRecord, Failure, RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.tasks import Outcome
from merlin.spec.load import load_spec
from merlin.workspace.directory import Workspace
from merlin.workspace.prepare import prepare_study

OK, FAILED, SKIPPED = int(Outcome.OK), int(Outcome.FAILED), int(Outcome.SKIPPED)
BEGAN = 1_800_000_000.0

SPEC = """\
description: {name: rockets, description: 'Rockets <script>alert("x")</script>'}
# flights & their judges
global.parameters:
  FUEL: {values: [solid, liquid], label: FUEL.%%}
merlin:
  samples:
    generate: {method: sobol, num: 8, seed: 1, bounds: {THRUST: [1, 9], MASS: [0.5, 3]}}
    column_labels: [THRUST, MASS]
study:
  - name: launch
    description: one flight
    run: {cmd: "fly $(THRUST) $(MASS) $(FUEL)"}
  - name: judge
    description: what people say
    run: {depends: [launch_*], cmd: "echo <b>wow</b>"}
"""


def prepare(folder: Path, text: str = SPEC) -> Workspace:
    (folder / "rockets.yaml").write_text(text)
    return prepare_study(load_spec(folder / "rockets.yaml", variables={"OUTPUT_PATH": str(folder)}))


def write(workspace: Workspace, *records: object, worker: str = "w0") -> None:
    with LedgerWriter(
        workspace.ledger_dir, worker, session="run1", study_id=workspace.plan.study_id, sync=False
    ) as writer:
        writer.append(*records)  # type: ignore[arg-type]


def chunk(
    instance: str, lo: int, outcomes: Sequence[int], *, at: float, elapsed_s: float = 4.0, tail: str = ""
) -> ChunkRecord:
    """A record of a worker, `at` seconds after the study began."""
    failures = [
        Failure(task=lo + i, cause="exit code 3", exit_code=3, tail=tail)
        for i, outcome in enumerate(outcomes)
        if outcome == FAILED
    ]
    return ChunkRecord(
        instance=instance,
        lo=lo,
        hi=lo + len(outcomes),
        started=BEGAN + at,
        elapsed_s=elapsed_s,
        outcomes=np.array(outcomes, np.uint8),
        seconds=np.full(len(outcomes), elapsed_s / len(outcomes), np.float32),
        failures=tuple(failures),
    )


def event(kind: str, at: float, **data: object) -> EventRecord:
    return EventRecord(kind=kind, data=data, time=BEGAN + at)


def fill(workspace: Workspace, *, tail: str = "the nozzle burnt through") -> None:
    """16 flights, of which 3 failed; a night between the first half and the second; no judge."""
    write(workspace, event("run_started", 0, workers=1, host="node1"), worker="controller")
    write(
        workspace,
        chunk("launch/FUEL.solid", 0, [OK] * 4 + [FAILED] * 2 + [OK] * 2, at=1, tail=tail),
        chunk("launch/FUEL.liquid", 0, [OK] * 7 + [FAILED], at=30_000, elapsed_s=8.0, tail=tail),
    )
    write(
        workspace,
        event("run_stopped", 6, reason="interrupted"),
        event("run_started", 29_999, workers=1, host="node2"),
        event("run_finished", 30_010),
        RangeRecord(
            instance="judge", lo=0, hi=1, outcome=SKIPPED, cause="launch failed", started=BEGAN + 30_009
        ),
        worker="controller",
    )


def add_training_run(folder: Path) -> None:
    """A run of two trainers with its evaluation and one chart."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"format": "merlin-run", "version": 1}))
    for trainer in (0, 1):
        place = folder / "trainers" / str(trainer)
        place.mkdir(parents=True)
        lines = [
            {"kind": "train", "step": 10, "time_s": 1.0, "samples_per_s": 50.0, "values": {"loss": 2.0}},
            {"kind": "validation", "step": 20, "time_s": 2.0, "values": {"loss": 1.0}},
            {"kind": "end", "step": 20, "time_s": 2.0, "state": "finished", "values": {}},
        ]
        (place / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    known = {
        "r2": 0.987,
        "relative_l2": 0.01,
        "rmse": 0.1,
        "mae": 0.1,
        "bias": 0.0,
        "max_error": 0.3,
        "std": None,
    }
    evaluation = {
        "format": "merlin-evaluation", "version": 1, "run": str(folder), "model": "surrogate<1>", "kind": "prediction",
        "num_parameters": 1200, "trainer": 1, "step": 20, "metric": "loss", "value": 1.0, "split": "test",
        "num_samples": 40, "notes": [], "scalars": {"height": {"units": "m", **known}}, "images": {}, "classes": {},
        "inputs": {}, "metrics": {"loss": None}, "data": {"path": "", "digest": ""},
    }  # fmt: skip
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "plots").mkdir()
    drawing = '<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script><path d="M0 0"/></svg>'
    (folder / "plots" / "scalars.svg").write_text(drawing)


class ReadPage(HTMLParser):
    """A page as a reader's program sees it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.handlers: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            elif name in ("href", "xlink:href"):
                self.links.append(value or "")
            elif name == "src":
                self.sources.append(value or "")
            elif name.startswith("on"):
                self.handlers.append(name)

    def handle_data(self, data: str) -> None:
        self.words += data
