"""Options that several commands share, and how their words become values."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from merlin.cli.argv import ManyOption, is_assignment
from merlin.cli.completing import values
from merlin.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING = click.Path(exists=True, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
AT_LEAST_ONE = click.IntRange(min=1)


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Add several options, in the order in which the help shows them."""

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def steps_option(*flags: str, help: str) -> Callable[[F], F]:
    """An option that takes several names of steps."""
    return click.option(
        *flags,
        "steps",
        cls=ManyOption,
        leaves_last=True,
        metavar="STEP …",
        help=help,
        shell_complete=values.steps,
    )


def out_option(type: click.Path, help: str, **more: Any) -> Callable[[F], F]:
    """-o, --out: the file or directory to write."""
    metavar = "DIR" if type is FOLDER else "FILE"
    return click.option("-o", "--out", type=type, metavar=metavar, help=help, **more)


def number_option(flag: str, metavar: str, help: str, **more: Any) -> Callable[[F], F]:
    """An option with a whole number that is at least 1."""
    return click.option(flag, type=AT_LEAST_ONE, metavar=metavar, help=help, **more)


def places_options(what: str) -> Callable[[F], F]:
    """The workspaces of several studies, and --root: directories that hold such; see `study_places`."""
    return with_options(
        click.argument("workspaces", nargs=-1, type=EXISTING_FOLDER, metavar="[WORKSPACE]..."),
        click.option(
            "--root", "roots", type=EXISTING_FOLDER, multiple=True, metavar="DIR",
            help=f"{what} whose workspace lies in DIR, also those to come; may repeat.",
        ),
    )  # fmt: skip


spec_argument = click.argument("spec", type=EXISTING_FILE, shell_complete=values.specs)
workspace_argument = click.argument("workspace", type=EXISTING, shell_complete=values.workspaces)
# also one that does not exist any more
named_workspace_argument = click.argument(
    "workspace", type=click.Path(path_type=Path), shell_complete=values.workspaces
)
spec_or_workspace_argument = click.argument("spec_or_workspace", type=EXISTING, shell_complete=values.studies)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout.")
csv_option = click.option("--csv", "as_csv", is_flag=True, help="Print comma-separated values.")
run_argument = click.argument("run", type=EXISTING_FOLDER)
device_option = click.option(
    "--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda or cuda:N."
)
trust_code_option = click.option(
    "--trust-code",
    is_flag=True,
    help='Import the model that RUN names, if it is no model of Merlin\'s but "module:callable": it may do anything.',
)
workers_option = click.option(
    "--workers", "num_workers", type=AT_LEAST_ONE, metavar="N", help="Worker processes [default: all cores]."
)
local_option = click.option(
    "--local", is_flag=True, help="Run on this machine, even where a broker is configured."
)
vars_option = click.option(
    "--vars",
    "assignments",
    cls=ManyOption,
    accepts=is_assignment,
    metavar="K=V …",
    help="Override variables of the spec; takes several: --vars N=5 NAME=x.",
)
# upstream's scripts give it; there is only Celery
task_server_option = click.option("--task_server", "--task-server", hidden=True, expose_value=False)


_study_options = with_options(
    vars_option,
    click.option(
        "--samplesfile",
        "samples_file",
        type=click.Path(),
        metavar="FILE",
        help="Use these samples instead of the spec's (.npy, .csv, .tab, .parquet).",
    ),
    click.option(
        "--pgen",
        type=click.Path(exists=True, dir_okay=False),
        metavar="FILE",
        help="Python file whose get_custom_generator() replaces global.parameters.",
    ),
    click.option(
        "--pargs", multiple=True, metavar="A:B", help="An argument for the --pgen file; may repeat."
    ),
    click.option(
        "--allow-undefined", is_flag=True, help="Warn of a $(NAME) that nothing defines; leave it as it is."
    ),
)


def spec_options(command: F) -> F:
    """Add the options that change what a spec means: --vars, --samplesfile, --pgen, --pargs, --allow-undefined.

    All but --vars reach the command as `options`, which are StudyOptions.
    """

    @wraps(command)
    def with_study_options(
        *,
        samples_file: str | None,
        pgen: str | None,
        pargs: tuple[str, ...],
        allow_undefined: bool,
        **given: Any,
    ) -> Any:
        from merlin.workspace.options import StudyOptions

        check_pgen(pgen, pargs)
        options = StudyOptions(
            samples_file=samples_file, pgen=pgen, pargs=pargs, allow_undefined=allow_undefined
        )
        return command(options=options, **given)

    return cast("F", _study_options(with_study_options))


extend_options = with_options(
    click.option(
        "--extend",
        "study",
        type=EXISTING_FOLDER,
        metavar="WORKSPACE",
        help="Add to the study in WORKSPACE the samples that SPEC has and it does not.",
    ),
    click.option(
        "--new-rows",
        "only_new",
        is_flag=True,
        help="With --extend: the samples file has the new samples alone.",
    ),
)


update_options = with_options(
    click.option(
        "--update",
        "updated",
        type=EXISTING_FOLDER,
        metavar="WORKSPACE",
        help="Let the study in WORKSPACE become what SPEC says: what depends on a change runs again.",
    ),
    click.option(
        "--keep",
        cls=ManyOption,
        leaves_last=True,
        metavar="STEP …",
        help="With --update: take what these steps have made as it is, however they are defined now.",
        shell_complete=values.steps,
    ),
    click.option(
        "--changed-code",
        is_flag=True,
        help="With --update: also run steps again whose functions, scripts or `files` have changed.",
    ),
)


def check_update(
    updated: Path | None,
    extended: Path | None,
    *,
    only_new: bool,
    keep: tuple[str, ...],
    changed_code: bool,
    yes: bool = False,
) -> None:
    """Raise UsageError for options of --update and --extend that do not go with each other."""
    if only_new and extended is None:
        raise UsageError("--new-rows says what the samples file of --extend WORKSPACE has; give both")
    if updated is not None and extended is not None:
        raise UsageError("--update adds new samples, too; leave out --extend")
    if keep and updated is None:
        raise UsageError("--keep says what --update WORKSPACE leaves as it is; give both")
    if changed_code and updated is None:
        raise UsageError("--changed-code says what --update WORKSPACE runs again; give both")
    if yes and updated is None:
        raise UsageError("--yes answers what --update WORKSPACE asks; give both")


# of commands that show a study
study_options = with_options(
    spec_or_workspace_argument,
    click.option(
        "-o",
        "--output-path",
        "output",
        type=FOLDER,
        metavar="DIR",
        help="Where to look for workspaces, if a spec is given.",
    ),
    click.option("--dump", type=FILE, metavar="FILE", help="Write a .csv or .json file."),
    click.option("--no-prompts", is_flag=True, help="Take the newest workspace of a spec without asking."),
    task_server_option,
)
# --spec, --queues and --workers, which choose among live workers
worker_filters = with_options(
    click.option("--spec", type=EXISTING, metavar="SPEC", help="Only workers that this spec names."),
    click.option("--queues", cls=ManyOption, metavar="QUEUE …", help="Only workers of these queues."),
    click.option(
        "--workers", "patterns", cls=ManyOption, metavar="REGEX …", help="Only workers whose name matches."
    ),
    task_server_option,
)

# of commands about batch jobs
scheduler_option = click.option(
    "--scheduler", default="", metavar="NAME", help="Instead of the spec's batch.type, e.g. slurm."
)
worker_args_option = click.option(
    "--worker-args", default="", metavar='"ARGS"', help='For the Celery workers, e.g. "--concurrency 4".'
)
job_options = with_options(
    spec_or_workspace_argument,
    number_option("--nodes", "N", "Nodes of one job, instead of the batch block's."),
    click.option(
        "--walltime", default="", metavar="HH:MM:SS", help="Of one job, instead of the batch block's."
    ),
    click.option(
        "--queue", default="", metavar="NAME", help="Partition or queue, instead of the batch block's."
    ),
    click.option(
        "--bank", default="", metavar="NAME", help="Account to charge, instead of the batch block's."
    ),
    scheduler_option,
    steps_option("--steps", help="Only workers, and queues, of these steps."),
    worker_args_option,
    vars_option,
)

# of commands that run tasks again
rerun_options = with_options(
    click.option("-y", "--yes", is_flag=True, help="Do not ask."),
    click.option("--dry", is_flag=True, help="Show what would run again, and run nothing."),
    local_option,
    workers_option,
)


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
    from merlin.base.document.scalars import Problem, to_failure_limit  # heavy: YAML

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


def split_names(text: str | None) -> tuple[str, ...] | None:
    """The names in "A,B,…"; None for no text."""
    return None if text is None else tuple(name for name in text.split(",") if name)
