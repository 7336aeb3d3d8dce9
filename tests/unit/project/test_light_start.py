"""The help page loads nothing heavy, so that it appears at once."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "numpy", "pydantic", "h5py", "hdf5plugin", "blake3", "duckdb", "scipy", "rich", "yaml", "maestrowf", "pandas",
    "pyarrow", "matplotlib",
    "textual", "starlette", "uvicorn", "prometheus_client", "celery", "redis", "torch", "asyncio",
}  # fmt: skip
SCRIPT = """
import json, sys
from merlin.cli.main import main
try:
    main({argv!r})
except SystemExit:
    pass
print("\\n" + json.dumps(sorted({{name.split(".")[0] for name in sys.modules}})))
"""


def modules_of(*argv: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(argv=list(argv))], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    "argv",
    [
        ("--help",),
        ("--version",),
        ("run", "--help"),
        ("shards", "--help"),
        ("sql", "--help"),
        ("run-workers", "--help"),
        ("monitor", "--help"),
        ("workers", "submit", "--help"),
        ("nonsense",),
    ],
)
def test_help_loads_nothing_heavy(argv: tuple[str, ...]) -> None:
    assert not modules_of(*argv) & HEAVY


def test_importing_merlin_loads_nothing_heavy() -> None:
    script = "import sys, merlin; print(*{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & (HEAVY | {"click"})
