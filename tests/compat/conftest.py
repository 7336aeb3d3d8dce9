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
from dataclasses import dataclass
from pathlib import Path

import pytest

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
def upstream_examples() -> Path:
    """`dev_workflows` and `workflows` of upstream's wheel."""
    for module in NEEDED_MODULES:
        try:
            __import__(module)
        except ImportError:
            _unavailable(f"the example scripts need {module}: pip install -e '.[compat]'")
    return _fetch_wheel(PROJECT / ".cache") / "merlin" / "examples"


@pytest.fixture(scope="session")
def upstream_workflows(upstream_examples: Path) -> Path:
    return upstream_examples / "workflows"


@dataclass
class Example:
    """A private copy of one folder of specs, with our `merlin` first on the PATH."""

    folder: Path

    @classmethod
    def copy_of(cls, source: Path, target: Path) -> Example:
        shutil.copytree(source, target)
        (target / "home").mkdir()
        return cls(target)

    def run(self, spec: str, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`merlin run --local`, to the end."""
        return self.merlin("run", "--local", spec, *args, check=check)

    def run_on_workers(
        self, spec: str, broker_url: str, *args: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """`merlin run` and the workers that the spec asks for; returns the end of `merlin monitor`."""
        env = {"MERLIN_BROKER_URL": broker_url}
        self.merlin("run", spec, *args, **env)
        self.merlin("run-workers", spec, **env)
        try:
            return self.merlin("monitor", spec, "--sleep", "1", check=check, **env)
        finally:
            self.merlin("stop-workers", "--spec", spec, check=False, **env)

    def merlin(self, *words: str, check: bool = True, **more: str) -> subprocess.CompletedProcess[str]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        env["HOME"] = str(self.folder / "home")  # no configuration of the developer's
        command = ["merlin", *words]
        done = subprocess.run(
            command, cwd=self.folder, env=env | more, capture_output=True, text=True, check=False, timeout=280
        )
        if check and done.returncode:
            pytest.fail(f"{' '.join(command)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def workspaces(self, under: str = ".") -> list[Path]:
        """Study workspaces below `under`, oldest first."""
        return sorted(p.parent for p in (self.folder / under).glob("*_????????-??????/merlin_info"))

    def files(self, workspace: Path) -> set[str]:
        """Every file of the steps (not of `merlin_info`), relative to the workspace."""
        found = (p.relative_to(workspace) for p in workspace.rglob("*") if p.is_file())
        return {str(p) for p in found if p.parts[0] != "merlin_info"}


@pytest.fixture
def example(upstream_workflows: Path, tmp_path: Path) -> Iterator[type]:
    def copy(name: str) -> Example:
        return Example.copy_of(upstream_workflows / name, tmp_path / name)

    yield copy  # type: ignore[misc]
