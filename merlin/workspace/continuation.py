"""Which samples a spec has beyond the old ones: of a built-in design, of a file, or of generate.cmd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.base.document.tokens import substitute
from merlin.base.files import link_or_copy
from merlin.errors import Diagnostic, SamplesError, UsageError
from merlin.plan.study_variables import runtime_variables
from merlin.spec.defaults import SAMPLES_SUFFIXES
from merlin.workspace.new_samples import first_difference, kinds, write_rows
from merlin.workspace.options import StudyOptions
from merlin.workspace.same_samples import sample_files
from merlin.workspace.samples_table import SamplesTable, rows_of
from merlin.workspace.sampling import check_continuation, write_samples
from merlin.workspace.spec_samples import design_of, located_samples, run_generate, samples_path
from merlin.workspace.text_samples import DIALECTS
from merlin.workspace.waiting_samples import waiting_samples

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.spec.model import Generate, Samples

_GENERATE = ("merlin", "samples", "generate")


class Continuation(Struct):
    """The samples that follow `old`, which are all samples so far.

    `variables` are the runtime variables of the new workspace; `only_new` says that a file holds the new samples
    alone.
    """

    spec: Spec
    options: StudyOptions
    samples: Samples
    variables: Mapping[str, str]
    old: SamplesTable
    only_new: bool
    _found: SamplesTable | None = None  # the new rows, once they are known from a file

    @property
    def path(self) -> Path:
        return samples_path(self.samples, self.options, self.variables)

    def look(self) -> int | None:
        """How many samples are new; None if generate.cmd makes them. Writes nothing.

        Raises:
            SamplesError: the samples do not continue the old ones.
        """
        generate = self.samples.generate
        if self.options.samples_file is not None or generate is None:
            return self._look_at_file()
        exists = bool(sample_files(self.path))
        if exists and (self.only_new or self._table(check=False).num > self.old.num):
            return self._look_at_file()
        if generate.method is not None:
            return self._look_at_design()
        if exists:
            message = (
                f"{self.path} exists and has no new samples; generate.cmd would overwrite those of the study"
            )
            hint = "let it write to $(MERLIN_INFO), where every extension has its own file"
            raise SamplesError([self.spec.finding((*_GENERATE, "cmd"), message, "extend-samples", hint)])
        waiting = self._waiting()
        return None if waiting is None else waiting.num - self.old.num

    def write(self, info: Path, say: Callable[[str], None]) -> Path | None:
        """Write the new samples alone to a file in merlin_info; None if there are none after all."""
        generate = self.samples.generate
        if self._found is None and generate is not None:
            say("generating samples")
            if generate.method is not None:
                target = self._target(info)
                design = design_of(self.spec, self.samples)
                write_samples(target, design, self.samples.column_labels, self.old.num)
                return target
            self._make_file(generate, info)
            self._look_at_file()
        if self._found is None:
            return None
        target = self._target(info)
        write_rows(target, self._found, 0)
        return target

    def _make_file(self, generate: Generate, info: Path) -> None:
        """Run generate.cmd, or take what it made when an update of the study needed it."""
        waiting = self._waiting()
        if waiting is None:
            run_generate(self.spec, substitute(generate.cmd or "", self.variables), self.path, info)
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(waiting.path, self.path)

    def _waiting(self) -> SamplesTable | None:
        if self.only_new:  # the command makes the new ones alone
            return None
        study = Path(self.variables["MERLIN_WORKSPACE"]).parents[1]  # that of extensions/001
        return waiting_samples(self.samples, self.options, runtime_variables(self.spec, study), self.old)

    def _target(self, info: Path) -> Path:
        is_file_name = self.path.suffix.lower() in SAMPLES_SUFFIXES and "*" not in self.path.name
        name = Path(self.path.name if is_file_name else "samples.npy")
        if self.path.parent == info and not self.path.exists():
            return info / name
        return info / f"new_{name if self.path.suffix.lower() in DIALECTS else name.with_suffix('.npy')}"

    # ------------------------------------------------------------------ files

    def _table(self, *, check: bool) -> SamplesTable:
        return located_samples(self.spec, self.options, self.path, check=check)

    def _look_at_file(self) -> int:
        """Find the new rows of the file; 0 if it has the old ones alone."""
        table = self._table(check=True)
        self._check_kinds(table)
        if self.only_new:
            self._refuse_old_rows(table)
            self._found = table
            return table.num
        num = self.old.num
        hint = (
            "the samples have to begin with those of the study; if they are the new ones alone, "
            "add --new-rows (in Python: new_rows=True)"
        )
        if table.num < num:
            raise self._error(f"{table.num:,} samples, and the study has {num:,}", hint)
        row = first_difference(self.old, table, num)
        if row is not None:
            raise self._error(
                f"row {row} is not sample {row} of the study: {self._shown(table, row)} in the file, "
                f"{self._shown(self.old, row)} in the study",
                hint,
            )
        if table.num > num:
            self._found = rows_of(table, num, table.num)
        return table.num - num

    def _check_kinds(self, table: SamplesTable) -> None:
        old, new = kinds(self.old), kinds(table)
        for label, kind in old.items():
            if new[label] != kind:
                raise self._error(
                    f"column {label} holds {new[label]}, that of the study {kind}",
                    "text that looks like numbers stays text in a .npy file with a text dtype",
                )

    def _refuse_old_rows(self, table: SamplesTable) -> None:
        """Refuse a file whose rows are samples of the study already, for example because it was given twice."""
        num = min(table.num, self.old.num)
        if first_difference(table, self.old, num) is None:
            raise self._error(
                f"its first {num:,} rows are samples 0-{num - 1} of the study, so they are not new",
                "leave out --new-rows (in Python: new_rows) if the file begins with the old samples",
            )
        first = self.old.num - table.num
        if first >= 0 and first_difference(table, self.old, table.num, b_from=first) is None:
            raise self._error(f"its rows are samples {first}-{self.old.num - 1} of the study already", "")

    def _shown(self, table: SamplesTable, row: int) -> str:
        return ", ".join(table.text_rows(row, row + 1)[0])

    def _error(self, message: str, hint: str) -> SamplesError:
        return SamplesError([Diagnostic(str(self.path), 0, 0, message, hint=hint, code="extend-samples")])

    # ------------------------------------------------------------------ designs

    def _look_at_design(self) -> int:
        """How many rows of the built-in design are new."""
        design, num = design_of(self.spec, self.samples), self.old.num
        try:
            if self.only_new:
                raise UsageError("--new-rows is about samples files; this spec's samples have a method")
            check_continuation(design, num)
            if design.num_samples < num:
                raise UsageError(
                    f"num is {design.num_samples:,}, and the study has {num:,} samples: it says how many there "
                    "are to be in all"
                )
        except UsageError as error:
            raise SamplesError([self.spec.finding(_GENERATE, str(error), "extend-samples")]) from error
        if set(kinds(self.old).values()) != {"numbers"}:
            message = "the study's samples have text, and a method makes numbers; use --samplesfile"
            raise SamplesError([self.spec.finding(_GENERATE, message, "extend-samples")])
        return design.num_samples - num
