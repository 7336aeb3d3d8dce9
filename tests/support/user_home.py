"""A user's directory, and commands of merlin in it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from commands import WarmCommand, run_merlin


class UserHome:
    """A folder in which commands see only the given variables of Merlin and Celery; HOME is the folder by default."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MERLIN_", "CELERY_"))}
        self.env = {**inherited, "HOME": str(folder), **env}

    def start(self, *words: str | Path, **env: str) -> WarmCommand:
        """Start `merlin …` as a process of its own, which a test can kill."""
        return WarmCommand("merlin", words, cwd=self.folder, env={**self.env, **env})

    def merlin(
        self, *words: str | Path, code: int | None = 0, **env: str
    ) -> subprocess.CompletedProcess[str]:
        """Run `merlin …`, which must end with `code`; None: with any code."""
        done = run_merlin(*words, cwd=self.folder, env={**self.env, **env})
        shown = f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert code is None or done.returncode == code, shown
        return done

    def ask(self, *words: str | Path, code: int | None = 0) -> Any:
        """The JSON document that `merlin … --json` prints."""
        return json.loads(self.merlin(*words, "--json", code=code).stdout)
