"""A user's site on the shared cluster."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from slurm import SlurmCluster
from slurm_site import SlurmSite, slurm_site


@pytest.fixture
def site(any_slurm: SlurmCluster, tmp_path: Path) -> Iterator[SlurmSite]:
    with slurm_site(any_slurm, tmp_path) as made:
        yield made
