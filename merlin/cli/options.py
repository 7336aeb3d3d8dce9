"""Options that several commands share, and how their words become values."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from merlin.cli.argv import ManyOption, is_assignment
from merlin.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

spec_argument = click.argument("spec", type=click.Path(exists=True, dir_okay=False, path_type=Path))
workspace_argument = click.argument("workspace", type=click.Path(exists=True, path_type=Path))
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
run_argument = click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
device_option = click.option(
    "--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda or cuda:N."
)
trust_code_option = click.option(
    "--trust-code",
    is_flag=True,
    help='Import the model that RUN names, if it is no model of Merlin\'s but "module:callable": it may do anything.',
)
workers_option = click.option(
    "--workers",
    "num_workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Worker processes [default: all cores].",
)
spec_or_workspace_argument = click.argument("spec_or_workspace", type=click.Path(exists=True, path_type=Path))
vars_option = click.option(
    "--vars",
    "assignments",
    cls=ManyOption,
    accepts=is_assignment,
    metavar="K=V …",
    help="Override variables of the spec; takes several: --vars N=5 NAME=x.",
)
task_server_option = click.option("--task_server", "--task-server", default="celery", hidden=True)


def spec_options(command: F) -> F:
    """Add the options that change what a spec means: --vars, --samplesfile, --pgen, --pargs, --allow-undefined.

    All but --vars reach the command as `options`.
    """

    @wraps(command)
    def with_options(
        *,
        samples_file: str | None,
        pgen: str | None,
        pargs: tuple[str, ...],
        allow_undefined: bool,
        **given: Any,
    ) -> Any:
        from merlin.workspace.prepare import StudyOptions

        check_pgen(pgen, pargs)
        options = StudyOptions(
            samples_file=samples_file, pgen=pgen, pargs=pargs, allow_undefined=allow_undefined
        )
        return command(options=options, **given)

    added: Any = with_options
    for option in (
        click.option(
            "--allow-undefined",
            is_flag=True,
            help="Warn of a $(NAME) that nothing defines; leave it as it is.",
        ),
        click.option(
            "--pargs", multiple=True, metavar="A:B", help="An argument for the --pgen file; may repeat."
        ),
        click.option(
            "--pgen",
            type=click.Path(exists=True, dir_okay=False),
            metavar="FILE",
            help="Python file whose get_custom_generator() replaces global.parameters.",
        ),
        click.option(
            "--samplesfile",
            "samples_file",
            type=click.Path(),
            metavar="FILE",
            help="Use these samples instead of the spec's (.npy, .csv, .tab, .parquet).",
        ),
        vars_option,
    ):
        added = option(added)
    return cast("F", added)


def extend_options(command: F) -> F:
    """Add --extend WORKSPACE and --new-rows."""
    for option in (
        click.option(
            "--new-rows",
            "only_new",
            is_flag=True,
            help="With --extend: the samples file has the new samples alone.",
        ),
        click.option(
            "--extend",
            "study",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="WORKSPACE",
            help="Add to the study in WORKSPACE the samples that SPEC has and it does not.",
        ),
    ):
        command = option(command)
    return command


def check_new_rows(study: Path | None, only_new: bool) -> None:
    """Raise UsageError for --new-rows without --extend."""
    if only_new and study is None:
        raise UsageError("--new-rows says what the samples file of --extend WORKSPACE has; give both")


def study_options(command: F) -> F:
    """Add the argument SPEC_OR_WORKSPACE and what goes with it: --output-path, --dump, --no-prompts."""
    for option in (
        task_server_option,
        click.option(
            "--no-prompts", is_flag=True, help="Take the newest workspace of a spec without asking."
        ),
        click.option(
            "--dump",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help="Write a .csv or .json file.",
        ),
        click.option(
            "-o",
            "--output-path",
            "output",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Where to look for workspaces, if a spec is given.",
        ),
        spec_or_workspace_argument,
    ):
        command = option(command)
    return command


def worker_filters(command: F) -> F:
    """Add --spec, --queues and --workers, which choose among live workers."""
    for option in (
        click.option(
            "--workers",
            "patterns",
            cls=ManyOption,
            metavar="REGEX …",
            help="Only workers whose name matches.",
        ),
        click.option("--queues", cls=ManyOption, metavar="QUEUE …", help="Only workers of these queues."),
        click.option(
            "--spec",
            type=click.Path(exists=True, path_type=Path),
            metavar="SPEC",
            help="Only workers that this spec names.",
        ),
    ):
        command = option(command)
    return command


def parse_assignments(assignments: tuple[str, ...]) -> dict[str, str]:
    """Turn K=V words into a dict; raises UsageError for a word without a name or a name given twice."""
    out: dict[str, str] = {}
    for word in assignments:
        name, equals, value = word.partition("=")
        if not equals or not is_assignment(word):
            raise UsageError(f"--vars takes NAME=VALUE words, not {word!r}; example: --vars N_SAMPLES=100")
        if name in out:
            raise UsageError(f"--vars gives {name} twice: {out[name]!r} and {value!r}")
        out[name] = value
    return out


def parse_failure_limit(text: str) -> float:
    """A count, or a share of the tasks as a fraction; infinite for none. Raises UsageError."""
    from merlin.base.document.scalars import Problem, to_failure_limit

    try:
        limit = to_failure_limit(text)
    except Problem as problem:
        raise UsageError(f"--max-failures {problem}; write a count (12) or a share (5%)") from None
    return float("inf") if limit is None else limit


def check_pgen(pgen: str | None, pargs: tuple[str, ...]) -> None:
    """Raise UsageError for --pargs that no --pgen file would read, or that are not KEY:VALUE."""
    if pargs and not pgen:
        raise UsageError("--pargs gives arguments to a --pgen file; name one with --pgen FILE")
    for word in pargs:
        if ":" not in word:
            raise UsageError(f"--pargs takes KEY:VALUE, not {word!r}; example: --pargs NUM:5")
