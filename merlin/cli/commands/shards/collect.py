"""`merlin shards collect`: make data sets of a study again, from the files and shards that are there."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.base.text import count, duration, size
from merlin.cli.argv import ManyCommand
from merlin.cli.options import (
    EXISTING_FILE,
    FOLDER,
    json_option,
    out_option,
    parse_assignments,
    spec_options,
    workers_option,
    workspace_argument,
)
from merlin.cli.output import print_json, warn
from merlin.errors import UsageError, command_line

if TYPE_CHECKING:
    from merlin.shards.recollecting.run import Recollected
    from merlin.spec.load import Spec
    from merlin.workspace.options import StudyOptions

_MAX_CAUSES = 8  # that are shown


@click.command(cls=ManyCommand)
@workspace_argument
@click.option(
    "--spec",
    type=EXISTING_FILE,
    metavar="FILE",
    help="The spec with the new aggregate step [default with --out: as the study did it].",
)
@click.option(
    "--aggregate",
    default="",
    metavar="STEP",
    help="With --out: which aggregate step, or its instance, if there are several.",
)
@out_option(FOLDER, "Directory of a new data set beside the study's; a killed collect goes on there.")
@spec_options
@workers_option
@json_option
def collect(
    workspace: Path,
    spec: Path | None,
    aggregate: str,
    out: Path | None,
    assignments: tuple[str, ...],
    options: StudyOptions,
    num_workers: int | None,
    as_json: bool,
) -> None:
    """Make data sets of a study again, without running its steps.

    Values come from the files of the tasks that ended ok, and where these are gone from the study's own shards. With
    --spec the aggregate steps of another spec say what is collected: other fields, filters, shapes, compression,
    samples per shard or splits.

    The data sets of the study become what the spec says, as with `merlin run SPEC --update WORKSPACE`, and `merlin
    history WORKSPACE --undo` goes back. What depends on them is left to `merlin restart`. With --out, one data set is
    made in another directory, and the study stays as it is.

    Exits with 0 if every task that ended ok is in the data set or filtered, with 1 if the values of one are not as the
    aggregate step says, and with 2 if the spec does not fit the study, or if anything else would have to run.
    """
    from merlin.workspace.options import StudyOptions

    loaded = None if spec is None else _load(spec, assignments, options)
    if loaded is None and (assignments or options != StudyOptions()):
        raise UsageError("--vars, --samplesfile and --pgen say how to read a spec; name it with --spec FILE")
    if out is not None:
        sys.exit(_collect_beside(workspace, loaded, options, aggregate, out, num_workers, as_json=as_json))
    if loaded is None:
        again = command_line("shards", "verify", workspace, "--repair")
        raise UsageError(
            "name what is new: with --spec FILE the data sets of the study become what that says, with --out DIR one "
            f"is made beside them; damaged rows come back with: {again}"
        )
    if aggregate:
        raise UsageError("--aggregate goes with --out; in the study, all data sets become what the spec says")
    from merlin.cli.remaking import remake_data_sets  # late: it loads most of Merlin, and --out does without

    sys.exit(remake_data_sets(loaded, options, workspace, num_workers=num_workers, as_json=as_json))


def _collect_beside(
    workspace: Path,
    loaded: Spec | None,
    options: StudyOptions,
    aggregate: str,
    out: Path,
    num_workers: int | None,
    *,
    as_json: bool,
) -> int:
    """Make one data set in the directory `out`; returns the exit code."""
    from merlin.api.collecting import recollection_of
    from merlin.cli.display import progress_bar
    from merlin.shards.recollecting.run import collect_again

    begin = time.monotonic()
    request = recollection_of(workspace, out, name=aggregate, spec=loaded, options=options)
    with progress_bar(f"collect {request.shares[0].new.id}", "tasks", quiet=as_json) as report:
        found = collect_again(request, num_workers=num_workers, progress=report)
    document = _document(found, time.monotonic() - begin)
    if as_json:
        print_json(document)
    else:
        _show(found, document)
    return int(bool(found.failed))


def _load(path: Path, assignments: tuple[str, ...], options: StudyOptions) -> Spec:
    from merlin.workspace.checking import load_checked

    loaded = load_checked(path, parse_assignments(assignments), options)
    warn(loaded.warnings)
    return loaded


def _document(found: Recollected, seconds: float) -> dict[str, Any]:
    data = found.data
    return {
        "out": data.directory,
        "counts": data.counts,
        "num_rows": data.num_rows,
        "num_shards": len(data.shards),
        "shards_kept": found.num_kept,
        "size_bytes": data.size_bytes,
        "seconds": seconds,
        "rows_from_files": found.origins.files,
        "rows_from_shards": found.origins.shards,
        "failed": found.failed,
        "content_digest": data.content_digest,
    }


def _show(found: Recollected, document: dict[str, Any]) -> None:
    for cause, num in list(found.failed.items())[:_MAX_CAUSES]:
        print(f"{count(num, 'task')} left out: {cause}")
    if len(found.failed) > _MAX_CAUSES:
        print(f"and {count(len(found.failed) - _MAX_CAUSES, 'more cause')}; --json has all of them")
    print(found.data.counts)
    what = f"{count(document['num_rows'], 'row')} in {count(document['num_shards'], 'shard')}"
    origins = (
        f"values of {count(found.origins.files, 'row')} from files, of {found.origins.shards:,} from shards"
    )
    if document["num_rows"] and not (found.origins.files or found.origins.shards):
        origins = "it was complete already"
    print(
        f"{document['out']}: {what}, {size(document['size_bytes'])}, {duration(document['seconds'])}; {origins}"
    )
