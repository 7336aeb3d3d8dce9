"""An observer of a run that keeps every event."""

from __future__ import annotations

from dataclasses import dataclass, field

from merlin.execution.events import Observer, Progress, RunSummary
from merlin.plan.plan import Plan


@dataclass
class RecordingObserver(Observer):
    plan: Plan | None = None
    steps: list[Progress] = field(default_factory=list)  # started and progress
    notes: list[str] = field(default_factory=list)
    summary: RunSummary | None = None

    def started(self, plan: Plan, progress: Progress) -> None:
        self.plan = plan
        self.steps.append(progress)

    def progress(self, progress: Progress) -> None:
        self.steps.append(progress)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def finished(self, summary: RunSummary) -> None:
        self.summary = summary
