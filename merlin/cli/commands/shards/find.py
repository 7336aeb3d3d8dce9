"""The data sets that a path on the command line means."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from merlin.cli.options import EXISTING
from merlin.cli.output import remark
from merlin.errors import NotADataSetError, UsageError

if TYPE_CHECKING:
    from merlin.workspace.directory import Workspace

path_argument = click.argument("path", type=EXISTING)


def find_data_set(path: Path) -> Path:
    """The directory of the one data set that `path` means. Raises NotADataSetError, or UsageError for several."""
    found = find_data_sets(path)
    if len(found) > 1:
        raise UsageError(f"{path} holds several data sets; name one of: {', '.join(map(str, found))}")
    return found[0]


def find_data_sets(path: Path, *, lost: bool = False) -> list[Path]:
    """The directories of the data sets that `path` means; with `lost`, also of those whose manifest is not there.

    Raises NotADataSetError if there is none.
    """
    if path.name == "manifest.json":
        path = path.parent
    for parent in path.absolute().parents:
        if (parent / "merlin_info" / "switch.json").is_file():
            _open(parent)  # the data set may not be in its place yet
    if (path / "manifest.json").is_file():
        return [path]
    if (path / "merlin_info").is_dir():
        return _in_workspace(path, lost)
    if lost and any(path.glob("shard_*.json")):
        return [path]
    from merlin.shards.format.manifest_file import unfinished

    raise NotADataSetError(unfinished(path) or f"{path} is no data set: it has no manifest.json")


def _open(path: Path) -> Workspace:
    from merlin.workspace.holding import open_finished

    return open_finished(path, remark)


def _in_workspace(path: Path, lost: bool) -> list[Path]:
    from merlin.plan.plan import StepKind
    from merlin.shards.proving.origin import has_manifest_outcome

    workspace = _open(path)
    aggregates = [i for i in workspace.plan.instances if i.kind is StepKind.AGGREGATE]
    found = []
    for instance in aggregates:
        directory = workspace.data_set_dir(instance)
        if (directory / "manifest.json").is_file() or (lost and has_manifest_outcome(workspace, instance)):
            found.append(directory)
    if found:
        return found
    what = "its aggregate steps have not finished" if aggregates else "no step of its study is an aggregate"
    raise NotADataSetError(f"no data set in the workspace {path}: {what}")
