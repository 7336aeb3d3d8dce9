"""The metrics of one study, from its page or from its line in the list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import get_args

from merlin.dashboard.listed_study import ListedStudy
from merlin.dashboard.measured import Details, Measured
from merlin.dashboard.metric_families import Families
from merlin.shards.format.counts import OUTCOMES as OF_SAMPLES
from merlin.status.eta import Eta
from merlin.views.step_lines import StepLine
from merlin.views.study_page import StudyPage, StudyState

STATES: tuple[str, ...] = get_args(StudyState)
OUTCOMES = ("ok", "failed", "skipped", "missing")
MAX_STEPS = 15  # of a study, with series of their own
MAX_CLASSES = 8  # kinds of failures of a step
MAX_DATA_SETS = 20  # of a study
REST = "(other)"  # the label of steps and kinds that have no series of their own


def add_page(families: Families, page: StudyPage, details: Details | None) -> None:
    """Everything about a study."""
    study = page.id
    families.add("merlin_study", 1.0, study=study, name=page.name, executor=page.executor)
    _add_state(families, study, page.state)
    if page.state == "unreadable":
        return
    _add_totals(families, study, page.totals)
    is_running = page.state == "running"
    _add_pace(families, study, (page.rate or 0.0) if is_running else 0.0, page.eta)
    _add_if(families, "merlin_study_started_timestamp_seconds", page.started, study)
    _add_if(families, "merlin_study_last_record_timestamp_seconds", page.totals.ended, study)
    _add_if(families, "merlin_study_workers", sum(not worker.is_stopping for worker in page.workers), study)
    _add_if(families, "merlin_study_slots", page.num_slots, study)
    _add_if(families, "merlin_study_obstacles", len(page.obstacles), study)
    _add_if(families, "merlin_study_ledger_bytes", page.ledger_bytes, study)
    _add_if(families, "merlin_study_damaged_places", len(page.damage), study)
    _add_steps(families, study, page.steps, is_running=is_running)
    _add_jobs(families, page)
    for line in page.data_sets[:MAX_DATA_SETS]:
        for outcome in OF_SAMPLES:
            num = getattr(line.samples, outcome)
            families.add("merlin_data_set_samples", num, study=study, data_set=line.key, outcome=outcome)
    if details is not None:
        _add_if(families, "merlin_study_free_bytes", details.free_bytes, study)
        _add_failures(families, study, details, _names(page.steps))


def add_line(families: Families, line: ListedStudy) -> None:
    """What a list knows of a study."""
    study = line.id
    families.add("merlin_study", 1.0, study=study, name=line.name, executor="")
    if line.state in STATES:  # it may not have been read yet
        _add_state(families, study, line.state)
        if line.state != "unreadable":
            _add_totals(families, study, line)
            _add_pace(families, study, line.rate or 0.0, line.eta)


def add_study_counts(families: Families, measured: Measured) -> None:
    """How many studies there are, those without series of their own included."""
    states = {line.workspace: line.state for line in measured.lines}
    states |= {page.workspace: page.state for page in measured.pages}
    numbers = Counter(states.values())
    for state in STATES:
        families.add("merlin_studies", numbers.get(state, 0), state=state)


def _add_state(families: Families, study: str, state: str) -> None:
    for each in STATES:
        families.add("merlin_study_state", float(each == state), study=study, state=each)


def _add_totals(families: Families, study: str, totals: StepLine | ListedStudy) -> None:
    families.add("merlin_study_tasks_planned", totals.planned, study=study)
    for outcome in OUTCOMES:
        families.add("merlin_study_tasks", getattr(totals, outcome), study=study, outcome=outcome)


def _add_pace(families: Families, study: str, rate: float, eta: Eta | None) -> None:
    families.add("merlin_study_tasks_per_second", rate, study=study)
    if eta is not None:
        for bound, seconds in (("low", eta.low_s), ("mid", eta.mid_s), ("high", eta.high_s)):
            families.add("merlin_study_eta_seconds", seconds, study=study, bound=bound)


def _add_if(families: Families, name: str, value: float | None, study: str) -> None:
    if value is not None:
        families.add(name, value, study=study)


def _names(steps: Sequence[StepLine]) -> dict[str, str]:
    """The label of the series of each step."""
    room = len(steps) if len(steps) <= MAX_STEPS else MAX_STEPS - 1
    return {line.step: line.step if number < room else REST for number, line in enumerate(steps)}


def _add_steps(families: Families, study: str, steps: Sequence[StepLine], *, is_running: bool) -> None:
    names = _names(steps)
    for name in dict.fromkeys(names.values()):
        lines = [line for line in steps if names[line.step] == name]
        labels = {"study": study, "step": name}
        families.add("merlin_step_tasks_planned", sum(line.planned for line in lines), **labels)
        for outcome in OUTCOMES:
            num = sum(getattr(line, outcome) for line in lines)
            families.add("merlin_step_tasks", num, **labels, outcome=outcome)
        families.add("merlin_step_chunks_running", sum(line.running for line in lines), **labels)
        families.add("merlin_step_busy_seconds", sum(line.busy_s for line in lines), **labels)
        rate = sum(line.rate or 0.0 for line in lines if line.missing) if is_running else 0.0
        families.add("merlin_step_tasks_per_second", rate, **labels)
        etas = [line.eta_s for line in lines if line.eta_s is not None]
        if len(etas) == len(lines):
            families.add("merlin_step_eta_seconds", max(etas), **labels)


def _add_jobs(families: Families, page: StudyPage) -> None:
    names, numbers = _names(page.steps), Counter[tuple[str, str]]()
    for jobs in page.step_jobs:
        step = names.get(jobs.instance.partition("/")[0], REST)
        for state in ("pending", "refused", "running", "ended"):
            numbers[step, state] += getattr(jobs, state)
    for (step, state), num in numbers.items():
        families.add("merlin_step_jobs", num, study=page.id, step=step, state=state)


def _add_failures(families: Families, study: str, details: Details, names: dict[str, str]) -> None:
    by_step: dict[str, Counter[str]] = {}
    for (step, kind), num in details.failures.items():
        by_step.setdefault(names.get(step, REST), Counter())[kind] += num
    for step, kinds in by_step.items():
        first = kinds.most_common(MAX_CLASSES)
        rest = kinds.total() - sum(num for _, num in first)
        for kind, num in [*first, *([(REST, rest)] if rest else [])]:
            families.add("merlin_step_failures", num, study=study, step=step, exit_class=kind)
