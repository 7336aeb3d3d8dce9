"""Where studies of a spec were put by `merlin run -o DIR`, so that other commands look there, too.

A hint and never the truth: of what is remembered, only workspaces that are there and have the study's name count.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from merlin.base.records import as_kind, parsed
from merlin.config.places import merlin_home
from merlin.config.private_file import write_private
from merlin.errors import ConfigError

FORMAT = 1
MAX_SPECS = 100
MAX_FOLDERS = 10  # of one spec


@dataclass(frozen=True, slots=True)
class _Noted:
    """The file."""

    format: int
    places: dict[str, list[str]]  # spec -> directories, the last one first


def remember(spec: Path, folder: Path, env: Mapping[str, str]) -> None:
    """Note that studies of `spec` lie in `folder`, too; nothing is noted where the home cannot be written."""
    with suppress(OSError, ConfigError):
        places = _read(env)
        folders = [str(folder), *(known for known in places.pop(_key(spec), []) if known != str(folder))]
        newest_first = {_key(spec): folders[:MAX_FOLDERS], **places}
        kept = dict(list(newest_first.items())[:MAX_SPECS])
        merlin_home(env).mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(_file(env), json.dumps({"format": FORMAT, "places": kept}, indent=1) + "\n")


def remembered(spec: Path, env: Mapping[str, str]) -> list[Path]:
    """The directories noted for `spec` that are still there, the last one first."""
    return [Path(folder) for folder in _read(env).get(_key(spec), []) if Path(folder).is_dir()]


def _file(env: Mapping[str, str]) -> Path:
    return merlin_home(env) / "study_places.json"


def _key(spec: Path) -> str:
    return str(spec.absolute().resolve())


def _read(env: Mapping[str, str]) -> dict[str, list[str]]:
    """What is noted; nothing, if the file is damaged or of another version."""
    try:
        data = as_kind(parsed(_file(env).read_bytes()), _Noted)
    except (OSError, ValueError):
        return {}
    return data.places if data.format == FORMAT else {}
