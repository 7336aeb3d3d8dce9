"""The README's and the tutorial's files and commands work, in the order of the page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import SCIENCE, run_python, write_merlin

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
def test_every_snippet_of_the_page_works(
    document: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Those of the README as a reader starts them; those of the others in processes that are loaded already."""
    warm = document != "README.md"
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    if warm:
        programs = tmp_path_factory.mktemp("programs")
        write_merlin(programs / "merlin", SCIENCE)
        environment["PATH"] = f"{programs}:{environment['PATH']}"
    ran = 0
    for language, text in BLOCK.findall((ROOT / document).read_text()):
        named = NAME.match(text)
        if named:
            (tmp_path / named.group(1)).write_text(text)
            continue
        if language == "python" and warm:
            done = run_python(text, cwd=tmp_path, env=environment, timeout=240, loaded=SCIENCE)
        elif language in ("bash", "python"):
            start = ["bash", "-euo", "pipefail"] if language == "bash" else [sys.executable]
            done = subprocess.run(
                [*start, "-c", text],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                timeout=240,
            )
        else:
            continue
        assert done.returncode == 0, f"{text}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        ran += 1
    assert ran >= 2
