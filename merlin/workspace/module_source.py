"""Where the module of a function step is, found without importing anything."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


def module_file(module: str, spec_root: str) -> Path | None:
    """The file of a module, by its dotted name; None if there is none.

    Modules are looked for where a worker does: in the directory of the spec, on PYTHONPATH, and among the installed
    packages.
    """
    top, *inner = module.split(".")
    if top in sys.builtin_module_names:
        return None
    importlib.invalidate_caches()  # the file may be newer than the last look at its directory
    found = _found(top, _search_path(spec_root)) or _installed(top)
    for name in inner:
        if found is None or found.submodule_search_locations is None:
            return None
        found = _found(name, list(found.submodule_search_locations))
    if found is None or not found.has_location or found.origin is None:
        return None
    return Path(os.path.abspath(found.origin))  # noqa: PTH100 - links in the path are kept


def _search_path(spec_root: str) -> list[str]:
    """The search path of a worker, without the directories that this program has added for itself."""
    of_user = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    of_program = ("", str(Path.cwd()))
    return [spec_root, *of_user, *(place for place in sys.path if place not in of_program)]


def _found(name: str, places: list[str]) -> ModuleSpec | None:
    """`name` has no dots: with them, Python would look for the parent among the imported modules."""
    return PathFinder.find_spec(name, places)


def _installed(name: str) -> ModuleSpec | None:
    """A package that is not on the search path, because it is an editable installation."""
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):  # ValueError: an imported module that does not say where it came from
        return None
