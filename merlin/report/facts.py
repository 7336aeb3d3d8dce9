"""Everything that a report says of a study, except about its data sets and trained models."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from merlin.ledger.replay import replay
from merlin.report.activity import Activity, activity
from merlin.report.durations import StepDurations, step_durations
from merlin.report.runs import StudyRun, study_runs
from merlin.report.samples import Parameter, SamplesSummary, parameters, summarise_samples
from merlin.status.failures import FailureGroup, group_failures
from merlin.views.cost import StudyCost, study_cost
from merlin.views.graph import Node, graph_of_all
from merlin.views.study_page import StudyPage, StudyView
from merlin.views.surroundings import obstacles_now
from merlin.workspace.directory import Workspace, members
from merlin.workspace.provenance import Provenance, read_provenance


class ReportFacts(Struct, frozen=True, kw_only=True):
    """A study with its extensions at one moment."""

    page: StudyPage
    studies: tuple[Workspace, ...]  # the study first
    provenance: Provenance
    spec_name: str
    spec_text: str  # as it was written; "" if the copy is gone
    nodes: tuple[Node, ...]
    runs: tuple[StudyRun, ...]
    samples: SamplesSummary | None
    parameters: tuple[Parameter, ...]
    activity: Activity | None  # None if nothing has run
    durations: StepDurations
    failures: tuple[FailureGroup, ...]  # the largest first
    cost: StudyCost

    @property
    def study(self) -> Workspace:
        return self.studies[0]


def gather(workspace: Workspace) -> ReportFacts:
    """Read the study of a workspace, with its extensions. Raises LedgerError if its ledger cannot be read."""
    studies = members(workspace)
    page = StudyView(studies[0].path).look()
    if page.totals.missing and not page.obstacles:
        page = replace(page, obstacles=obstacles_now(studies[0]))
    replays = [(study, replay(study.ledger_dir, study.plan)) for study in studies]
    plans = [(study.plan, state) for study, state in replays]
    spec = studies[0].spec_copy().decode(errors="replace")
    groups = [group for study in studies for group in group_failures(study)]
    return ReportFacts(
        page=page,
        studies=tuple(studies),
        provenance=read_provenance(studies[0].info),
        spec_name=Path(studies[0].plan.spec_path).name,
        spec_text=spec,
        nodes=tuple(graph_of_all([study.plan for study in studies])),
        runs=study_runs(replays),
        samples=summarise_samples(studies),
        parameters=parameters(studies[0]),
        activity=activity(plans, until=page.now if page.state == "running" else None),
        durations=step_durations(plans),
        failures=tuple(sorted(groups, key=lambda group: -group.count)),
        cost=study_cost(studies[0]),
    )


def between(start: float, end: float) -> str:
    """ "On 23 November 2026, from 18:50:34 to 18:51:12 UTC"."""
    first, last = (datetime.fromtimestamp(seconds).astimezone() for seconds in (start, end))
    if first.date() == last.date():
        return f"On {first:%-d %B %Y}, from {first:%H:%M:%S} to {last:%H:%M:%S %Z}"
    return f"From {moment(start)} to {moment(end)}"


def moment(seconds: float | None) -> str:
    """ "23 November 2026, 18:50:34 CET"; "" for an unknown time."""
    if seconds is None:
        return ""
    return f"{datetime.fromtimestamp(seconds).astimezone():%-d %B %Y, %H:%M:%S %Z}"
