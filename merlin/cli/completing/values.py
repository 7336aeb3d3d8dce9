# ruff: noqa: PTH111, PTH112, PTH118  a path stays the text that was typed, with its ~ and without its ./
"""Values that a shell may complete: specs, workspaces, steps. Every key press asks, so nothing heavy is loaded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    import click

PATH = "path"  # the kind of a value that the shell shows as it shows files
MAX_ELSEWHERE = 20
_SPECS = (".yaml", ".yml")
_STAMP = re.compile(r"_(\d{8}-\d{6})$")
_STUDY_BLOCK = re.compile(r"^study\s*:(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_STEP_NAME = re.compile(
    r"""^[ \t]*-[ \t]*(?:\{[ \t]*)?(?:["']?name["']?)[ \t]*:[ \t]*["']?([^"',\s#}]+)"""
    r"""|^[ \t]+name[ \t]*:[ \t]*["']?([^"',\s#}]+)|[,{\[][ \t]*name[ \t]*:[ \t]*["']?([^"',\s#}]+)""",
    re.MULTILINE,
)

Items = list[CompletionItem[str]]


def studies(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Workspaces, specs, and directories on the way to some."""
    return _paths(incomplete, with_specs=True, with_workspaces=True)


def specs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Specs, and directories on the way to some."""
    return _paths(incomplete, with_specs=True, with_workspaces=False)


def workspaces(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """Workspaces, and directories on the way to some."""
    return _paths(incomplete, with_specs=False, with_workspaces=True)


def steps(ctx: click.Context, param: click.Parameter, incomplete: str) -> Items:
    """The steps of the spec or workspace that stands on the command line already: `ctx.obj` has its words."""
    words = ctx.obj if isinstance(ctx.obj, list) else []
    study = next((path for word in words if _is_study(path := Path(word).expanduser())), None)
    names = [] if study is None else steps_of(study)
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _is_study(path: Path) -> bool:
    return (path.suffix in _SPECS and path.is_file()) or (path / "merlin_info").is_dir()


def steps_of(study: Path) -> list[str]:
    """The names of a study's steps; none if it cannot be read. A spec is looked through, and not parsed."""
    try:
        if study.is_dir():
            plan = json.loads((study / "merlin_info" / "plan.json").read_bytes())
            return list(dict.fromkeys(str(instance["step"]) for instance in plan["instances"]))
        found = _STUDY_BLOCK.search(study.read_text("utf-8", "replace"))
    except (OSError, ValueError, LookupError, TypeError):
        return []
    names = (
        match.group(1) or match.group(2) or match.group(3)
        for match in _STEP_NAME.finditer(found[1] if found else "")
    )
    return list(dict.fromkeys(names))


def _paths(incomplete: str, *, with_specs: bool, with_workspaces: bool) -> Items:
    folder, prefix = os.path.split(incomplete)
    made, found_specs, folders = [], [], []
    for name, is_folder in _entries(os.path.expanduser(folder) or ".", prefix):
        text = os.path.join(folder, name)
        if not is_folder:
            if with_specs and name.endswith(_SPECS):
                found_specs.append(text)
        elif os.path.isdir(os.path.join(os.path.expanduser(text), "merlin_info")):
            made.append(text)
        else:
            folders.append(text)
    found = _newest_first(made) if with_workspaces else []
    found += sorted(found_specs) + sorted(folders)
    if with_workspaces and not incomplete and not made:
        found = _elsewhere() + found
    return [CompletionItem(text, type=PATH) for text in found]


def _entries(folder: str, prefix: str) -> Iterator[tuple[str, bool]]:
    """Names that begin with `prefix`, and whether each is a folder; hidden ones need a dot in `prefix`."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.startswith(prefix) and (prefix.startswith(".") or entry.name[0] != "."):
                    yield entry.name, entry.is_dir()
    except OSError:
        return


def _newest_first(paths: list[str]) -> list[str]:
    def stamp(path: str) -> str:
        found = _STAMP.search(path)
        return found[1] if found else ""

    return sorted(paths, key=lambda path: (stamp(path), path), reverse=True)


def _elsewhere() -> list[str]:
    """The newest workspaces in the directories where the user has run studies."""
    from merlin.config.study_places import remembered_folders

    found = []
    for folder in remembered_folders(os.environ):
        for name, is_folder in _entries(str(folder), ""):
            if is_folder and _STAMP.search(name):
                found.append(str(folder / name))
    return _newest_first(found)[:MAX_ELSEWHERE]
