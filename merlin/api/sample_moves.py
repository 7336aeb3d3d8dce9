"""Where steps find other samples after an update: under the name of those before, as in $(MERLIN_INFO)/samples.npy."""

from __future__ import annotations

from collections.abc import Iterator
from glob import has_magic
from pathlib import Path

from merlin.api.updating import MemberUpdate, Update
from merlin.plan.study_variables import runtime_variables
from merlin.spec.load import Spec
from merlin.workspace.directory import INFO_DIR
from merlin.workspace.options import StudyOptions
from merlin.workspace.revisions import BEFORE, Move, aside_dir, plans_of
from merlin.workspace.spec_samples import samples_path, stored_path


def sample_moves(update: Update) -> Iterator[Move]:
    """The moves that put samples files in merlin_info aside, and link the new samples to their names.

    A name of another kind of file than the new samples have is free then: no step reads samples of before from it.
    """
    aside = aside_dir(update.number, BEFORE)
    for each in update.members:
        samples = each.plan.samples
        if each.rows is None or samples is None:
            continue
        above = Path(each.workspace.member)
        for name in _names(update.spec, each):
            yield Move(str(above / name), f"{aside}/{above / name}")
            if Path(name).suffix.lower() == Path(samples.file).suffix:
                yield Move(str(above / samples.file), str(above / name), is_link=True)


def _names(spec: Spec, member: MemberUpdate) -> list[str]:
    """The files in merlin_info that a step may take for the samples: the first one, and the one that the spec names."""
    workspace, samples = member.workspace, spec.document.merlin.samples
    *_, first = plans_of(workspace)[:2]  # the present plan, then that of the first revision
    names = [] if first.samples is None else [first.samples.file]
    if samples is not None:
        variables = runtime_variables(spec, workspace.path, workspace.root)
        names.append(stored_path(samples_path(samples, StudyOptions(), variables), workspace.path))
    found = (name for name in dict.fromkeys(names) if not has_magic(name))
    return [name for name in found if Path(name).parts[0] == INFO_DIR]
