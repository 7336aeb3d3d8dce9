"""`merlin info`."""

from __future__ import annotations

import sys

import click

from merlin.cli.options import json_option

PACKAGES = (
    "numpy", "scipy", "h5py", "hdf5plugin", "pyyaml", "pydantic", "duckdb", "click", "rich", "maestrowf",
    "pyarrow", "pandas", "matplotlib", "celery", "redis", "torch",
)  # fmt: skip


@click.command()
@json_option
def info(as_json: bool) -> None:
    """Show versions, paths and this machine, for bug reports."""
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
    if as_json:
        print_json({**facts, "packages": packages})
        return
    for key, value in facts.items():
        print(f"{key:<12}{value}")
    print()
    for name, found in packages.items():
        print(f"{name:<12}{found or 'not installed'}")
