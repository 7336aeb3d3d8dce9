"""`merlin info` shows versions and paths, for bug reports."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import click

import merlin
from merlin.cli.options import json_option
from merlin.cli.output import print_json
from merlin.errors import ConfigError

PACKAGES = (
    "numpy", "scipy", "h5py", "hdf5plugin", "pyyaml", "pydantic", "duckdb", "click", "rich", "maestrowf",
    "pyarrow", "pandas", "matplotlib", "celery", "kombu", "amqp", "redis", "torch",
)  # fmt: skip


@click.command()
@json_option
def info(as_json: bool) -> None:
    """Show versions, paths, this machine, and whether the configured servers answer, for bug reports."""
    packages = {name: _version(name) for name in PACKAGES}
    facts = {
        "merlin": merlin.__version__,
        "location": str(Path(merlin.__file__).parent),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
    }
    servers = _servers()
    if as_json:
        print_json({**facts, "packages": packages, "servers": servers})
        return
    for block in (facts, servers, {name: found or "not installed" for name, found in packages.items()}):
        if block is not facts:
            print()
        for key, value in block.items():
            print(f"{key:<12}{value}")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _servers() -> dict[str, str]:
    """The configuration and what the servers answer, in words; merlin doctor looks closer."""
    from merlin.config.load import find_config
    from merlin.views.servers import reach_all

    try:
        config = find_config()
    except ConfigError as error:
        return {"config": str(error)}
    if config is None:
        return {"config": "none: studies run on this machine"}
    out = {"config": str(config.path or config.origin)}
    names = ("broker", "backend")
    for name, (endpoint, reach) in zip(names, reach_all(config), strict=False):
        state = f"answers, {endpoint.product} {reach.version}" if reach.ok else reach.detail
        out[name] = f"{endpoint.safe_url}  {state}"
    out.setdefault("backend", out["broker"])
    return out
