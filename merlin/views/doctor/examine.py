"""Everything that a study on workers needs, from the packages of this installation to the workers elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import merlin
from merlin.config.model import Config
from merlin.errors import ConfigError
from merlin.views.doctor.finding import Finding, Status
from merlin.views.doctor.machine import PACKAGES, examine_directory, examine_package
from merlin.views.doctor.servers import examine_servers


def examine(find: Callable[[], Config | None], directory: Path) -> Iterator[Finding]:
    """Every finding, one by one, in a few seconds at most.

    `find` finds the configuration; `directory` is where workspaces shall go.
    """
    place = str(Path(merlin.__file__).parents[1])
    yield Finding(component="merlin", status="ok", version=merlin.__version__, detail=place)
    for name, least in PACKAGES.items():
        yield examine_package(name, least)
    yield examine_directory(directory)
    try:
        config = find()
    except ConfigError as error:
        hint = "merlin config check shows more"
        yield Finding(component="configuration", status="broken", detail=str(error), hint=hint)
        return
    yield judge_config(config)
    if config is None:
        return
    key = examine_key(config)
    yield key
    yield from examine_servers(config, has_key=key.status != "broken")


def judge_config(config: Config | None) -> Finding:
    """Where the configuration comes from."""
    if config is None:
        return Finding(
            component="configuration",
            status="absent",
            detail="no broker is configured: studies run on this machine",
            hint="for workers elsewhere: merlin server start, or merlin config create",
        )
    warnings = "; ".join(warning.render() for warning in config.warnings)
    where = f"{config.path} ({config.origin})" if config.path else config.origin
    status: Status = "warning" if warnings else "ok"
    return Finding(component="configuration", status=status, detail=where, hint=warnings)


def examine_key(config: Config) -> Finding:
    """The file with the user's key; made if there is none."""
    try:
        _ = config.key
    except ConfigError as error:
        return Finding(component="key", status="broken", detail=str(error))
    mode = config.key_path.stat().st_mode & 0o777
    return Finding(component="key", status="ok", detail=f"{config.key_path}, mode {mode:04o}")
