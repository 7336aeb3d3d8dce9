from __future__ import annotations

import pytest
from slurm_stand_in import StandIn


@pytest.fixture
def slurm(tmp_path):
    return StandIn(tmp_path / "slurm")
