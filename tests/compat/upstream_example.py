"""A private copy of a folder of specs, in which our command runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import run_merlin, write_merlin


@dataclass
class Example:
    """A private copy of one folder of specs, with our `merlin` first on the PATH."""

    folder: Path

    @classmethod
    def copy_of(cls, source: Path, target: Path) -> Example:
        shutil.copytree(source, target)
        (target / "home").mkdir()
        write_merlin(target / "home" / "merlin")  # for the steps that call it
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
        env["PATH"] = os.pathsep.join(
            [str(self.folder / "home"), str(Path(sys.executable).parent), env["PATH"]]
        )
        env["HOME"] = str(self.folder / "home")  # no configuration of the developer's
        done = run_merlin(*words, cwd=self.folder, env=env | more, timeout=280)
        if check and done.returncode:
            pytest.fail(f"merlin {' '.join(words)} exited {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def workspaces(self, under: str = ".") -> list[Path]:
        """Study workspaces below `under`, oldest first."""
        return sorted(p.parent for p in (self.folder / under).glob("*_????????-??????/merlin_info"))

    def files(self, workspace: Path) -> set[str]:
        """Every file of the steps (not of `merlin_info`), relative to the workspace."""
        found = (p.relative_to(workspace) for p in workspace.rglob("*") if p.is_file())
        return {str(p) for p in found if p.parts[0] != "merlin_info"}
