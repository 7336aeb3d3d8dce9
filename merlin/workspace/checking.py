"""Checking a study before it runs: the spec, every row of its samples, its parameters; all findings at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.files import absolute_path
from merlin.errors import Diagnostic, SpecError, UsageError
from merlin.plan.plan import Plan

if TYPE_CHECKING:
    from merlin.spec.load import SamplesBlock, Spec
    from merlin.workspace.prepare import StudyOptions


def load_checked(path: str | os.PathLike[str], variables: Mapping[str, str], options: StudyOptions) -> Spec:
    """The spec; if it has errors, SpecError lists them together with those of its samples file."""
    from merlin.spec.load import load_spec

    try:
        return load_spec(
            path,
            variables=variables,
            samples_file=options.samples_file,
            parameters=_generated_names(path, variables, options),
            allow_undefined=options.allow_undefined,
        )
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
    from merlin.spec.load import check_spec
    from merlin.workspace.prepare import plan_only

    names, generator = None, []
    try:
        names = _generated_names(path, variables, options)
    except UsageError as error:
        generator = [Diagnostic("command line", 0, 0, str(error), code="pgen")]
    spec, found = check_spec(
        path,
        variables=variables,
        samples_file=options.samples_file,
        parameters=names,
        allow_undefined=options.allow_undefined,
    )
    found = [*found, *sample_findings(path, variables, options.samples_file), *generator]
    if spec is None or generator:
        return None, _errors_first(found)
    found += more(spec) if more else []
    try:
        plan = plan_only(spec, options)
    except SpecError as error:
        told = {(d.message, d.line) for d in found}
        return None, _errors_first(
            [*found, *(d for d in error.diagnostics if (d.message, d.line) not in told)]
        )
    can_read_samples = not any(d.code.startswith("samples-") and d.severity == "error" for d in found)
    found += _plan_findings(spec, options, plan, can_read_samples=can_read_samples)
    return (None if any(d.severity == "error" for d in found) else plan), _errors_first(found)


def _plan_findings(
    spec: Spec, options: StudyOptions, plan: Plan, *, can_read_samples: bool
) -> list[Diagnostic]:
    """What is seen once there is a plan."""
    from merlin.plan.expand import runtime_variables
    from merlin.workspace.acquire import missing_paths
    from merlin.workspace.local_launcher import launch_warnings
    from merlin.workspace.spec_samples import unsafe_text, unused_generate

    found = launch_warnings(spec, plan)
    found += missing_paths(spec, runtime_variables(spec, Path(plan.workspace)))
    if plan.samples is not None:
        found += unused_generate(spec, plan.samples.num)
        if can_read_samples:
            found += unsafe_text(spec, options, plan, Path(plan.workspace) / plan.samples.file)
    return found


def _generated_names(
    path: str | os.PathLike[str], variables: Mapping[str, str], options: StudyOptions
) -> tuple[str, ...] | None:
    """Names of the parameters that a --pgen file makes; None without one."""
    from merlin.plan.parameters import generated
    from merlin.spec.load import read_variables

    if options.pgen is None:
        return None
    combos = generated(Path(options.pgen), options.pargs, read_variables(path, variables=variables))
    return tuple(combos[0].values) if combos else ()


def sample_findings(
    path: str | os.PathLike[str], variables: Mapping[str, str], samples_file: str | None
) -> list[Diagnostic]:
    """What is wrong with the samples file that a spec names, even if the rest of the spec is wrong too."""
    from merlin.spec.load import read_samples_block

    block = read_samples_block(path, variables=variables, samples_file=samples_file)
    if block is None or not block.file:
        return []
    file = _existing_path(block)
    return [] if file is None else _look(file, block, os.fspath(path))


def _existing_path(block: SamplesBlock) -> Path | None:
    """Where the file is; None if that is only known when the study runs, or if it is made then."""
    from merlin.base.document.tokens import find_tokens, substitute

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


def _look(file: Path, block: SamplesBlock, spec_file: str) -> list[Diagnostic]:
    from merlin.errors import SamplesError
    from merlin.workspace.samples import check_samples, open_samples

    try:
        check_samples(open_samples(file, block.labels))
    except SamplesError as error:
        return [located(d, spec_file, block.place) for d in error.diagnostics]
    return []


def located(finding: Diagnostic, spec_file: str, place: tuple[int, int]) -> Diagnostic:
    """A finding about a whole file, or about one without lines, points to where the spec names the file."""
    if finding.line or not place[0]:
        return finding
    message = f"{finding.file}: {finding.message}"
    hint = finding.hint
    if finding.code == "samples-missing" and not hint:
        hint = _where_to_look(Path(finding.file), Path(spec_file))
    return replace(finding, file=spec_file, line=place[0], col=place[1], message=message, hint=hint)


def _where_to_look(file: Path, spec_file: Path) -> str:
    root = spec_file.absolute().parent
    cwd = Path.cwd()
    if file.is_relative_to(cwd) and (root / file.relative_to(cwd)).exists():
        name = file.relative_to(cwd)
        return f"relative paths count from the current directory; did you mean $(SPECROOT)/{name}?"
    return "name an existing file, or add merlin.samples.generate"


def _errors_first(found: list[Diagnostic]) -> list[Diagnostic]:
    return sorted(dict.fromkeys(found), key=lambda d: d.severity != "error")
