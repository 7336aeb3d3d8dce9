"""Upstream's example specs, fetched from its wheel and run unmodified with our command.

The wheel is downloaded once into `.cache/` at the top of the checkout; nothing of it is kept in the project.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from upstream_example import Example

PROJECT = Path(__file__).resolve().parents[2]
WHEEL = "merlin==1.13.0"
NEEDED_MODULES = ("names", "faker", "spellbook", "pandas", "matplotlib")


def _unavailable(reason: str) -> None:
    """A missing prerequisite is a skip on a laptop and a failure in CI."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _fetch_wheel(cache: Path) -> Path:
    target = cache / "upstream-1.13.0"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "upstream.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.is_dir():
            return target
        partial = cache / "upstream-1.13.0.partial"
        shutil.rmtree(partial, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(partial), WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            _unavailable(f"cannot fetch {WHEEL}: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(next(partial.glob("*.whl"))) as wheel:
            wheel.extractall(partial)
        partial.rename(target)
    return target


@pytest.fixture(scope="session")
def upstream_wheel() -> Path:
    """Upstream's package, as it is in its wheel."""
    return _fetch_wheel(PROJECT / ".cache")


@pytest.fixture(scope="session")
def upstream_examples(upstream_wheel: Path) -> Path:
    """`dev_workflows` and `workflows` of upstream's wheel."""
    for module in NEEDED_MODULES:
        try:
            __import__(module)
        except ImportError:
            _unavailable(f"the example scripts need {module}: pip install -e '.[compat]'")
    return upstream_wheel / "merlin" / "examples"


@pytest.fixture(scope="session")
def upstream_workflows(upstream_examples: Path) -> Path:
    return upstream_examples / "workflows"


@pytest.fixture
def example(upstream_workflows: Path, tmp_path: Path) -> Iterator[type]:
    def copy(name: str) -> Example:
        return Example.copy_of(upstream_workflows / name, tmp_path / name)

    yield copy  # type: ignore[misc]
