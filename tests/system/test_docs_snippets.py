"""The README's and the tutorial's files and commands work, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAME = re.compile(r"# file: (\S+)\n")


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/tutorial.md",
        "docs/exporting.md",
        "docs/from-maestro.md",
        "docs/from-merlin.md",
        "docs/importing.md",
        "docs/loading.md",
        "docs/python.md",
        "docs/reading.md",
        "docs/seeing.md",
        "docs/training.md",
        "docs/updating.md",
    ],
)
def test_every_snippet_of_the_page_works(document: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ran = 0
    for language, text in BLOCK.findall((ROOT / document).read_text()):
        named = NAME.match(text)
        if named:
            (tmp_path / named.group(1)).write_text(text)
            continue
        if language == "bash":
            argv = ["bash", "-euo", "pipefail", "-c", text]
        elif language == "python":
            argv = [sys.executable, "-c", text]
        else:
            continue
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == 0, f"{text}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        ran += 1
    assert ran >= 2
