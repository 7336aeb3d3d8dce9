"""Where studies were put: those of a spec by `merlin run -o DIR`, so that other commands look there, and all others.

This is only a hint: a workspace counts only if it still exists and has the study's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.base.records import as_kind, parsed_with_names, to_plain
from merlin.config.places import merlin_home
from merlin.config.private_file import write_private
from merlin.errors import ConfigError

FORMAT = 1
MAX_SPECS = 100
MAX_FOLDERS = 10  # of one spec
MAX_ALL_FOLDERS = 500  # of all specs, for `merlin list`


class _Noted(Struct, frozen=True):
    """The content of the file that remembers where studies lie."""

    format: int = FORMAT
    places: dict[str, list[str]] = field(default_factory=dict)  # spec -> directories, the last one first
    folders: list[str] = field(default_factory=list)  # with workspaces of any spec, the last one first


def remember(spec: Path, folder: Path, env: Mapping[str, str]) -> None:
    """Note that studies of `spec` lie in `folder`, too; nothing is noted where the home cannot be written."""
    noted = _read(env)
    places = dict(noted.places)
    folders = [str(folder), *(known for known in places.pop(_key(spec), []) if known != str(folder))]
    newest_first = {_key(spec): folders[:MAX_FOLDERS], **places}
    _write(replace(noted, places=dict(list(newest_first.items())[:MAX_SPECS])), env)
    remember_folder(folder, env)


def remembered(spec: Path, env: Mapping[str, str]) -> list[Path]:
    """The directories noted for `spec` that are still there, the last one first."""
    return [Path(folder) for folder in _read(env).places.get(_key(spec), []) if Path(folder).is_dir()]


def remember_folder(folder: Path, env: Mapping[str, str]) -> None:
    """Note that some studies lie in `folder`; nothing is noted where the home cannot be written."""
    noted = _read(env)
    if str(folder) not in noted.folders:
        _write(replace(noted, folders=[str(folder), *noted.folders][:MAX_ALL_FOLDERS]), env)


def remembered_folders(env: Mapping[str, str]) -> list[Path]:
    """All directories with studies that are still there."""
    noted = _read(env)
    every = dict.fromkeys([*noted.folders, *(folder for each in noted.places.values() for folder in each)])
    return [Path(folder) for folder in every if Path(folder).is_dir()]


def _write(noted: _Noted, env: Mapping[str, str]) -> None:
    path = _file(env)
    with suppress(OSError, ConfigError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            _found(path)
        except FileNotFoundError:
            pass
        except ValueError:  # damaged: nothing of it is in `noted`
            path.replace(path.with_name(f"{path.name}.bak"))
        write_private(path, json.dumps(to_plain(noted), indent=1) + "\n")


def _file(env: Mapping[str, str]) -> Path:
    return merlin_home(env) / "study_places.json"


def _key(spec: Path) -> str:
    return str(spec.absolute().resolve())


def _read(env: Mapping[str, str]) -> _Noted:
    """What is noted; nothing, if the file is damaged or of another version."""
    try:
        return _found(_file(env))
    except (OSError, ValueError, ConfigError):
        return _Noted()


def _found(path: Path) -> _Noted:
    """What the file says. Raises OSError, ValueError if it is damaged, ConfigError if it is of another version."""
    data = parsed_with_names(path.read_bytes())
    if isinstance(data, dict) and data.get("format", FORMAT) != FORMAT:
        raise ConfigError(f"{path} is of another version of Merlin")
    return as_kind(data, _Noted)
