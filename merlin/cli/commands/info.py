"""`merlin info`."""

from __future__ import annotations

import sys

import click

from merlin.cli.options import json_option

PACKAGES = (
    "numpy", "scipy", "h5py", "hdf5plugin", "pyyaml", "pydantic", "duckdb", "click", "rich", "maestrowf",
    "pyarrow", "pandas", "matplotlib", "celery", "kombu", "amqp", "redis", "torch",
)  # fmt: skip


@click.command()
@json_option
def info(as_json: bool) -> None:
    """Show versions, paths, this machine, and whether the configured servers answer, for bug reports."""
    import os
    import platform
    from importlib.metadata import PackageNotFoundError, version
    from pathlib import Path

    import merlin
    from merlin.cli.output import print_json

    packages: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = None
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
    for key, value in facts.items():
        print(f"{key:<12}{value}")
    print()
    for key, value in servers.items():
        print(f"{key:<12}{value}")
    print()
    for name, found in packages.items():
        print(f"{name:<12}{found or 'not installed'}")


def _servers() -> dict[str, str]:
    """The configuration and what the servers answer, in words; merlin doctor looks closer."""
    from merlin.cli.servers import reach_all
    from merlin.config.load import find_config
    from merlin.errors import ConfigError

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
