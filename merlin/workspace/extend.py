"""More samples for a study that has run: a new workspace below its own, for the new samples alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.errors import SpecError, UsageError, WorkspaceError, command_line
from merlin.plan.growing import extends
from merlin.plan.parameters import as_block
from merlin.plan.plan import Plan, SamplesInfo
from merlin.plan.plan_io import write_plan
from merlin.plan.same_rows import differences
from merlin.plan.study_variables import runtime_variables
from merlin.workspace.code_files import require_files
from merlin.workspace.continuation import Continuation
from merlin.workspace.directory import (
    EXTENSIONS_DIR,
    INFO_DIR,
    PLAN_NAME,
    Workspace,
    extension_name,
    lock_file,
    members,
)
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import plan_study, preparing, with_samples_digest
from merlin.workspace.provenance import write_provenance
from merlin.workspace.replan import Replanning
from merlin.workspace.revisions import numbered, require_same_plan
from merlin.workspace.same_samples import digest
from merlin.workspace.samples import open_samples
from merlin.workspace.samples_table import JoinedRows, SamplesTable
from merlin.workspace.spec_samples import refuse_unsafe_text, stored_path
from merlin.workspace.variables_read import changed_variables

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.spec.model import Samples

LOCK_NAME = "extend.lock"
MAX_DIFFERENCES = 20  # that are shown


def prepare_extension(
    spec: Spec,
    options: StudyOptions,
    study: Workspace,
    *,
    only_new: bool = False,
    note: Callable[[str], None] | None = None,
) -> Workspace | None:
    """Plan the samples that the spec has beyond those of a study; None if there are none.

    Args:
        spec: A checked spec: that of the study, except for the samples. Its number of samples is the total to reach.
        options: Of the command line.
        study: The study, not one of its extensions. Nothing of it runs now.
        only_new: The samples file has the new samples alone; else it begins with the old ones.
        note: Receives one line for what takes long.

    Raises:
        SpecError: the spec does not describe the study, or its samples do not continue the study's.
        WorkspaceError: somebody else is extending the study, or has updated it, or it cannot be written to.
    """
    taken = f"{study.path} is being extended or updated by another command"
    with lock_file(study.info / LOCK_NAME, taken):  # updates hold it, too
        require_same_plan(study)
        extension = _Extension(spec, options, study, only_new)
        as_now = extension.check_spec()
        say = note or (lambda _: None)
        for step, lines in changed_variables(study.plan, as_now).items():
            say(f"{step}: {'; '.join(lines)}; the earlier rows were made with the old value")
        return extension.prepare(say)


def plan_extension(
    spec: Spec, options: StudyOptions, study: Workspace, *, only_new: bool = False
) -> Plan | None:
    """The plan that `prepare_extension` would make now, and raises as it does; writes nothing and runs nothing.

    Where only a command could find the number of new samples, the plan has none.
    """
    extension = _Extension(spec, options, study, only_new)
    extension.check_spec()
    return extension.preview()


class _Extension:
    """The next extension of a study."""

    def __init__(self, spec: Spec, options: StudyOptions, study: Workspace, only_new: bool) -> None:
        self.spec, self.options, self.study, self.only_new = spec, options, study, only_new
        self.members = members(study)
        # a number whose preparation failed is not used again
        number = max(numbered(study.path / EXTENSIONS_DIR), default=0) + 1
        self.path = study.path / extension_name(number)
        self.extending = extends(number, study.path, [member.plan for member in self.members])
        self.variables = runtime_variables(spec, self.path, study.path)
        self.replanning = Replanning(spec, options)
        self.combos = self.replanning.combos

    def preview(self) -> Plan | None:
        num = self._continuation().look()
        return None if num == 0 else self._plan(self.path / INFO_DIR / "samples.npy", num or 0)

    def _continuation(self) -> Continuation:
        samples, _ = self._samples()
        old = _old_rows(self.members)
        return Continuation(self.spec, self.options, samples, self.variables, old, self.only_new)

    def prepare(self, say: Callable[[str], None]) -> Workspace | None:
        new = self._continuation()
        if new.look() == 0:
            return None
        try:
            self.path.mkdir(parents=True)
        except OSError as error:
            raise WorkspaceError(f"cannot create {self.path}: {error.strerror}") from error
        with preparing(self.path):
            info = self.path / INFO_DIR
            parameters = as_block(self.combos) if self.options.pgen else None
            write_provenance(self.spec, info, self.variables, parameters)
            require_files(self.spec, self.variables, self.combos)
            file = new.write(info, say)
            if file is not None:
                table = open_samples(file, new.samples.column_labels)
                plan = self._plan(file, table.num)
                refuse_unsafe_text(self.spec, self.options, plan, table)
                plan = with_samples_digest(plan, table)
                write_plan(info / PLAN_NAME, plan)
                return Workspace(self.path, plan)
        shutil.rmtree(self.path)  # generate.cmd has made as many samples as there were
        return None

    def _plan(self, file: Path, num: int) -> Plan:
        return plan_study(
            self.spec,
            self.path,
            self.combos,
            num,
            stored_path(file, self.path),
            options=self.options,
            seed=self.study.plan.seed,
            extending=self.extending,
        )

    # ------------------------------------------------------------------ is it the same study

    def check_spec(self) -> Plan:
        """Compare what the spec would have planned at the time, which is returned, with what was planned."""
        _, old = self._samples()
        as_now = self.replanning.plan(self.study, old)
        if found := differences(self.study.plan, as_now):
            names = [step.name for step in self.spec.document.study]
            hint = (
                "an extension may differ from its study in the samples alone; give the same --vars, too, or change "
                f"the study: {command_line('run', self.spec.path, '--update', self.study.path)}"
            )
            raise SpecError(
                [
                    self.spec.finding(
                        ("study", names.index(each.step)) if each.step in names else ("study",),
                        f"not as in {self.study.path}: {each.message}",
                        "extend-differs",
                        hint,
                    )
                    for each in found[:MAX_DIFFERENCES]
                ]
            )
        if not any(instance.per_sample for instance in self.study.plan.instances):
            raise UsageError(f"no step of the study in {self.study.path} runs per sample")
        return as_now

    def _samples(self) -> tuple[Samples, SamplesInfo]:
        """The spec's samples block, and what the study's plan says of them."""
        samples, old = self.spec.document.merlin.samples, self.study.plan.samples
        if samples is None or old is None:
            whose = "the spec" if samples is None else f"the study in {self.study.path}"
            raise UsageError(f"{whose} has no samples, so there is nothing to add to (merlin.samples)")
        if tuple(samples.column_labels) != old.labels:
            message = (
                f"the columns are {', '.join(samples.column_labels)}, the study's {', '.join(old.labels)}"
            )
            where = ("merlin", "samples", "column_labels")
            raise SpecError([self.spec.finding(where, message, "extend-differs")])
        return samples, old


def _old_rows(studies: list[Workspace]) -> SamplesTable:
    """All samples so far; WorkspaceError if their files have changed."""
    parts = []
    for member in studies:
        info = member.plan.samples
        assert info is not None
        file = member.path / info.file
        table = open_samples(file, info.labels)
        if table.num < info.num or (info.digest and digest(table, info.num, info.digest) != info.digest):
            raise WorkspaceError(
                f"{file}: its first {info.num:,} rows are not those that {member.path} was planned with; "
                "put them back, or the samples there could not be told from the new ones"
            )
        parts.append((table, 0, info.num))
    return JoinedRows(parts)
