"""What several tests of the command need, made once for each process of a test run."""

from __future__ import annotations

from pathlib import Path

import pytest
from changing_study import SPEC, Home


@pytest.fixture(scope="session")
def finished_change(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a study of `changing_study` that has run; copy it."""
    home = Home(tmp_path_factory.mktemp("base") / "home")
    home.write(SPEC)
    home.run()
    return home.folder
