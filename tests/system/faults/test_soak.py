"""A study under random faults; a larger one and many more faults with `make soak`."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import RedisServer
from soaking import NUM_FAULTS, NUM_SAMPLES, soak


@pytest.mark.slow
@pytest.mark.timeout(300 + 8 * NUM_FAULTS)
def test_random_faults_cost_time_and_nothing_else(tmp_path: Path, own_redis: RedisServer) -> None:
    soak(tmp_path, own_redis, own_redis, NUM_SAMPLES, NUM_FAULTS)
