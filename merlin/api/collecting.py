"""Makes data sets of a study again: by which definition, and whether that can begin."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.api.left_to_run import refuse_running
from merlin.errors import SpecError, UsageError
from merlin.plan.plan import Plan, StepInstance, StepKind
from merlin.workspace.directory import Workspace, members
from merlin.workspace.holding import open_root
from merlin.workspace.options import StudyOptions

if TYPE_CHECKING:
    from merlin.shards.recollecting.share import Recollection
    from merlin.spec.load import Spec

_LOG = logging.getLogger("merlin")
_SAME = ("kind", "num_tasks", "per_sample", "params")  # of a source


def recollection_of(
    path: Path, out: Path, *, name: str, spec: Spec | None, options: StudyOptions
) -> Recollection:
    """What is needed to make a data set of the study at `path` again in the directory `out`.

    Args:
        path: The workspace of a study, not of an extension.
        out: The directory of the new data set.
        name: The name of the aggregate step, or the id of its instance; "" if the study has only one.
        spec: A checked spec whose aggregate step is the new definition; None: as the study did it.
        options: The options of the command line, besides the variables.

    Raises:
        UsageError: there is no such step, the study does not have what it collects, or `out` is no place for it.
        SpecError: the spec cannot be planned for this study.
        WorkspaceError: the study runs.
    """
    from merlin.shards.recollecting.share import recollection

    study = open_root(path, _LOG.warning)
    studies = members(study)
    refuse_running(studies)
    plan = study.plan if spec is None else _plan_for(study, spec, options)
    aggregate = _chosen(plan, name, study.path if spec is None else spec.path)
    if spec is not None:
        _require_same_sources(study, plan, aggregate, spec)
    return recollection(studies, aggregate, out, plan.spec_digest)


def _plan_for(study: Workspace, spec: Spec, options: StudyOptions) -> Plan:
    """What the spec would have planned for this study, with the samples that it has."""
    from merlin.workspace.replan import Replanning  # with the schema of specs, which only a new one needs

    old, block = study.plan.samples, spec.document.merlin.samples
    if (old.labels if old else ()) != (tuple(block.column_labels) if block else ()):
        message = (
            f"the columns are not those of the study's samples: {', '.join(old.labels) if old else 'none'}"
        )
        place = ("merlin", "samples", "column_labels") if block else ("merlin",)
        raise SpecError([spec.finding(place, message, "collect-differs")])
    return Replanning(spec, options).plan(study, old)


def _chosen(plan: Plan, name: str, place: Path) -> StepInstance:
    """The aggregate instance that a name means."""
    known = [i for i in plan.instances if i.kind is StepKind.AGGREGATE]
    found = [i for i in known if name in ("", i.id, i.step)]
    if len(found) == 1:
        return found[0]
    if not known:
        raise UsageError(f"{place} has no aggregate step")
    names = ", ".join(i.id for i in (found or known))
    if name and not found:
        raise UsageError(f"{place} has no aggregate step {name!r}; it has: {names}")
    raise UsageError(f"{place} has several data sets; name one with --aggregate: {names}")


def _require_same_sources(study: Workspace, plan: Plan, aggregate: StepInstance, spec: Spec) -> None:
    """Raise UsageError for a source that the study does not have, or has with other parameters or tasks."""
    assert aggregate.aggregate is not None
    ours, theirs = ({i.id: i for i in each.instances} for each in (study.plan, plan))
    for id in aggregate.aggregate.sources:
        new, old = theirs[id], ours.get(id)
        if old is None:
            raise UsageError(
                f"{spec.path}: '{aggregate.id}' collects from '{id}', which the study did not run"
            )
        if any(getattr(new, part) != getattr(old, part) for part in _SAME):
            raise UsageError(
                f"{spec.path}: '{id}' is not the step that the study in {study.path} ran: its kind, its samples or "
                "its parameters differ; only the aggregate step may be another one"
            )
