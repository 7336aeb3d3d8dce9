"""Checking a study before it runs: the spec, every row of its samples, its parameters; all findings at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec.structs import replace

from merlin.base.document.tokens import find_tokens, substitute
from merlin.base.files import absolute_path
from merlin.errors import Diagnostic, SamplesError, SpecError, UsageError
from merlin.plan.parameters import generated
from merlin.plan.plan import Plan
from merlin.plan.study_variables import runtime_variables
from merlin.spec.load import (
    HowToRead,
    SamplesBlock,
    Spec,
    check_spec,
    load_spec,
    read_samples_block,
    read_variables,
)
from merlin.workspace.acquire import missing_paths
from merlin.workspace.code_files import file_findings
from merlin.workspace.launchers import launch_warnings
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import combinations_for, plan_only
from merlin.workspace.spec_samples import (
    checked_samples,
    existing_samples,
    located,
    refuse_unsafe_text,
    unused_generate,
)


def load_checked(path: str | os.PathLike[str], variables: Mapping[str, str], options: StudyOptions) -> Spec:
    """The spec; if it has errors, SpecError lists them together with those of its samples file."""
    try:
        return load_spec(path, **_how_to_read(path, variables, options))
    except SpecError as error:
        more = sample_findings(path, variables, options.samples_file)
        raise SpecError([*error.diagnostics, *more]) from error


def check_study(
    path: str | os.PathLike[str],
    variables: Mapping[str, str],
    options: StudyOptions,
    more: Callable[[Spec], list[Diagnostic]] | None = None,
) -> tuple[Plan | None, list[Diagnostic]]:
    """The plan of a spec without errors, and every finding about the spec and the samples it names.

    `more` is another check, made if the spec can be read.
    """
    generator: list[Diagnostic] = []
    try:
        how = _how_to_read(path, variables, options)
    except UsageError as error:
        how = _how_to_read(path, variables, replace(options, pgen=None))
        generator = [Diagnostic("command line", 0, 0, str(error), code="pgen")]
    spec, found = check_spec(path, **how)
    found = [*found, *sample_findings(path, variables, options.samples_file), *generator]
    if spec is None or generator:
        return None, _errors_first(found)
    found += more(spec) if more else []
    try:
        plan = plan_only(spec, options)
    except SpecError as error:
        known = {(d.message, d.line) for d in found}
        found += [d for d in error.diagnostics if (d.message, d.line) not in known]
        return None, _errors_first(found)
    can_read_samples = not any(d.code.startswith("samples-") and d.severity == "error" for d in found)
    found += _plan_findings(spec, options, plan, can_read_samples=can_read_samples)
    return (None if any(d.severity == "error" for d in found) else plan), _errors_first(found)


def _plan_findings(
    spec: Spec, options: StudyOptions, plan: Plan, *, can_read_samples: bool
) -> list[Diagnostic]:
    """The findings for which a plan is needed."""
    found = launch_warnings(spec, plan)
    variables = runtime_variables(spec, Path(plan.workspace))
    found += missing_paths(spec, variables)
    found += file_findings(spec, variables, combinations_for(spec, options))
    if plan.samples is not None and can_read_samples:
        try:
            table = existing_samples(spec, options, Path(plan.workspace) / plan.samples.file)
            if table is not None:
                refuse_unsafe_text(spec, options, plan, table)
                found += unused_generate(spec, table)
        except SamplesError as error:
            found += error.diagnostics
    return found


def _how_to_read(
    path: str | os.PathLike[str], variables: Mapping[str, str], options: StudyOptions
) -> HowToRead:
    """The values of the command line for the spec. Raises UsageError if the file of --pgen makes no parameters."""
    names = None
    if options.pgen is not None:
        combos = generated(Path(options.pgen), options.pargs, read_variables(path, variables=variables))
        names = tuple(combos[0].values) if combos else ()
    return HowToRead(
        variables=variables,
        samples_file=options.samples_file,
        parameters=names,
        allow_undefined=options.allow_undefined,
    )


def sample_findings(
    path: str | os.PathLike[str], variables: Mapping[str, str], samples_file: str | None
) -> list[Diagnostic]:
    """What is wrong with the samples file that a spec names, even if the rest of the spec is wrong too."""
    block = read_samples_block(path, variables=variables, samples_file=samples_file)
    if block is None or not block.file:
        return []
    file = _existing_path(block)
    if file is None:
        return []
    try:
        checked_samples(file, block.labels)
    except SamplesError as error:
        return [located(d, os.fspath(path), block.place) for d in error.diagnostics]
    return []


def _existing_path(block: SamplesBlock) -> Path | None:
    """Where the file is; None if that is only known when the study runs, or if it is made then."""
    root = str(block.spec_path.absolute().parent)
    known = {"SPECROOT": root}
    known["OUTPUT_PATH"] = str(absolute_path(substitute(block.output_path or ".", known)))
    for name, path_text in block.dependencies.items():
        known[name] = str(absolute_path(substitute(path_text, known)))
    text = substitute(block.file, known)
    if find_tokens(text):
        return None
    path = absolute_path(os.path.expandvars(text))
    return None if block.generated and not path.exists() else path


def _errors_first(found: list[Diagnostic]) -> list[Diagnostic]:
    return sorted(dict.fromkeys(found), key=lambda d: d.severity != "error")
