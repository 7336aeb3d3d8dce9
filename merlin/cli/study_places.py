"""Which studies a command line means: directories of studies, and workspaces."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct

from merlin.base.files import absolute_path
from merlin.errors import UsageError
from merlin.workspace.directory import INFO_DIR, holds_workspaces


class StudyPlaces(Struct, frozen=True):
    """The directories of studies, and the workspaces that are named."""

    roots: list[Path]
    named: list[Path]


def study_places(workspaces: Iterable[Path], roots: Iterable[Path]) -> StudyPlaces:
    """The places of arguments and of --root; without any, the current directory.

    Raises UsageError for an argument that is neither a workspace nor holds some.
    """
    folders, named = [absolute_path(root) for root in roots], list[Path]()
    for path in map(absolute_path, workspaces):
        if (path / INFO_DIR).is_dir():
            named.append(path)
        elif holds_workspaces(path):
            folders.append(path)
        else:
            raise UsageError(
                f"{path} is not the workspace of a study, and holds none directly; "
                f"for the studies that will be there: --root {path}"
            )
    if not folders and not named:
        here = Path.cwd()
        (named if (here / INFO_DIR).is_dir() else folders).append(here)
    return StudyPlaces(list(dict.fromkeys(folders)), list(dict.fromkeys(named)))
