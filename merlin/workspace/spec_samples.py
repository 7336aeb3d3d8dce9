"""Where the samples that a spec names come from: an existing file, its command, or a built-in method."""

from __future__ import annotations

import glob as globbing
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from merlin.base.document.tokens import substitute
from merlin.base.files import absolute_path, end_of, write_text
from merlin.errors import Diagnostic, SamplesError, UsageError
from merlin.spec.defaults import GENERATED_FILE
from merlin.workspace.options import StudyOptions
from merlin.workspace.samples import MAX_DIAGNOSTICS, check_samples, open_samples
from merlin.workspace.samples_table import SamplesTable
from merlin.workspace.sampling import Design, check_design, is_made_by
from merlin.workspace.text_values import unsafe_values

if TYPE_CHECKING:
    from merlin.plan.plan import Plan
    from merlin.spec.load import Spec
    from merlin.spec.model import Generate, Samples

_TAIL_BYTES = 2000
_NUM_COMPARED = 1000  # samples


def is_made(samples: Samples, options: StudyOptions, path: Path) -> bool:
    """True if the samples are made for this study; existing ones are used as they are."""
    return options.samples_file is None and samples.generate is not None and not path.exists()


def checked_samples(path: Path, labels: Sequence[str]) -> SamplesTable:
    """The table of a file, after a look at every row."""
    table = open_samples(path, labels)
    check_samples(table)
    return table


def samples_path(samples: Samples, options: StudyOptions, variables: Mapping[str, str]) -> Path:
    """Absolute path of the samples file; a relative one counts from the current directory."""
    text = options.samples_file or substitute(samples.file or GENERATED_FILE, variables)
    return absolute_path(os.path.expandvars(text))


def stored_path(path: Path, workspace: Path) -> str:
    """Relative if it is inside the workspace, so that the workspace may be moved."""
    return str(path.relative_to(workspace)) if path.is_relative_to(workspace) else str(path)


def located_samples(spec: Spec, options: StudyOptions, path: Path, *, check: bool) -> SamplesTable:
    """The spec's samples in a file; with `check` after a look at every row.

    Raises SamplesError; what is wrong with the file itself points to the line of the spec that names it.
    """
    samples = spec.document.merlin.samples
    assert samples is not None
    with _placed_in(spec, options):
        return (checked_samples if check else open_samples)(path, samples.column_labels)


def _put_aside(path: Path) -> str:
    """Rename a file that may not be complete, because the next run would use it; says so."""
    if not path.is_file():
        return ""
    aside = path.with_name(f"{path.name}.failed")
    path.replace(aside)
    return f", and what it had written is {aside} now"


@contextmanager
def _placed_in(spec: Spec, options: StudyOptions) -> Iterator[None]:
    """Let findings about a file point to the line of the spec that names it, unless the command line does."""
    try:
        yield
    except SamplesError as error:
        if options.samples_file is not None:
            raise
        place = spec.position("merlin", "samples", "file")
        raise SamplesError([located(d, str(spec.path), place) for d in error.diagnostics]) from error


def located(finding: Diagnostic, spec_file: str, place: tuple[int, int]) -> Diagnostic:
    """A finding without a line points to where the spec names the file."""
    if finding.line or not place[0]:
        return finding
    message = f"{finding.file}: {finding.message}"
    hint = finding.hint
    if finding.code == "samples-missing" and not hint:
        hint = _where_to_look(Path(finding.file), Path(spec_file))
    return finding.but(file=spec_file, line=place[0], col=place[1], message=message, hint=hint)


def _where_to_look(file: Path, spec_file: Path) -> str:
    root = spec_file.absolute().parent
    cwd = Path.cwd()
    if file.is_relative_to(cwd) and (root / file.relative_to(cwd)).exists():
        name = file.relative_to(cwd)
        return f"relative paths count from the current directory; did you mean $(SPECROOT)/{name}?"
    return "name an existing file, or add merlin.samples.generate"


def refuse_unsafe_text(spec: Spec, options: StudyOptions, plan: Plan, table: SamplesTable) -> None:
    """Raise SamplesError if a script of the plan would contain text of the samples that a shell acts on."""
    with _placed_in(spec, options):
        if found := unsafe_values(plan, table, MAX_DIAGNOSTICS):
            raise SamplesError(found)


def existing_samples(spec: Spec, options: StudyOptions, path: Path) -> SamplesTable | None:
    """The samples in the file `path`; None if a run would make it. Raises SamplesError if they cannot be read."""
    samples = spec.document.merlin.samples
    if samples is None or is_made(samples, options, path):
        return None
    return open_samples(path, samples.column_labels)


def expected_samples(spec: Spec, samples: Samples, path: Path, options: StudyOptions) -> int | None:
    """The number of samples, None if they are made by a command."""
    if not is_made(samples, options, path):
        return located_samples(spec, options, path, check=False).num
    if samples.generate is None or samples.generate.cmd is not None:
        return None
    return design_of(spec, samples).num_samples


def design_of(spec: Spec, samples: Samples) -> Design:
    """The built-in design that the spec asks for; SamplesError with its place if it cannot be made."""
    where = ("merlin", "samples", "generate")
    design = _design(samples.generate)
    if design is None:
        message = "generate needs cmd, or method, num and bounds"
        raise SamplesError([spec.finding(where, message, "samples-generate")])
    try:
        check_design(design, samples.column_labels)
    except UsageError as error:
        raise SamplesError([spec.finding(where, str(error), "samples-generate")]) from error
    return design


def _design(generate: Generate | None) -> Design | None:
    """The design that a spec's block describes; None if it describes none."""
    if generate is None or generate.method is None or generate.num is None:
        return None
    return Design(method=generate.method, num=generate.num, bounds=generate.bounds, seed=generate.seed)


def unused_generate(spec: Spec, table: SamplesTable) -> list[Diagnostic]:
    """A warning if the samples of a study are not those of generate's method, because their file was there."""
    samples = spec.document.merlin.samples
    if samples is None or (design := _design(samples.generate)) is None:
        return []
    message = "the samples file exists and is used, so generate is not: it would make "
    if design.num_samples != table.num:
        message += f"{design.num_samples:,} samples, and {samples.file} has {table.num:,}"
    elif not _is_made_by(design, table):
        message += f"other values than {samples.file} has"
    else:
        return []
    hint = "to make new samples, remove the file or name another one; to keep it, leave generate out"
    where = ("merlin", "samples", "generate", "num")
    return [spec.finding(where, message, "samples-generate", hint, severity="warning")]


def _is_made_by(design: Design, table: SamplesTable) -> bool:
    columns = table.picked(np.arange(min(table.num, _NUM_COMPARED)))
    if any(column.dtype.kind not in "iuf" for column in columns.values()):
        return False
    try:
        return is_made_by(design, table.labels, np.stack(list(columns.values()), axis=1, dtype=np.float64))
    except UsageError:  # there is no such design
        return False


def run_generate(spec: Spec, command: str, path: Path, info: Path) -> None:
    """Run generate.cmd by /bin/sh in the current directory; cmd.sh, cmd.out, cmd.err go to merlin_info."""
    write_text(info / "cmd.sh", command)
    try:
        with open(info / "cmd.out", "wb") as out, open(info / "cmd.err", "wb") as err:
            done = subprocess.run(
                ["/bin/sh", "-c", command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, check=False
            )
    except BaseException:
        _put_aside(path)
        raise
    if done.returncode != 0:
        message = f"generate.cmd failed with exit code {done.returncode}{_put_aside(path)}"
    elif not path.exists() and not globbing.has_magic(str(path)):
        message = f"generate.cmd ended well, but did not make {path}"
    else:
        return
    tail = end_of(info / "cmd.err", _TAIL_BYTES).strip()
    indented = "\n".join(f"    {line}" for line in tail.splitlines())
    message += f"; the end of {info / 'cmd.err'}:\n{indented}" if tail else f"; {info / 'cmd.err'} is empty"
    raise SamplesError([spec.finding(("merlin", "samples", "generate", "cmd"), message, "samples-generate")])
