"""Benches for tests that run chunks, in warm shells and in fresh ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chunk_bench import Bench

from merlin.plan.plan import StepInstance


@pytest.fixture(params=["warm", "fresh"])
def fresh(request: pytest.FixtureRequest) -> bool:
    return request.param == "fresh"


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.close()


@pytest.fixture
def make(tmp_path: Path, benches: list[Bench]) -> Any:
    def make(*instances: StepInstance, **runner: Any) -> Bench:
        benches.append(Bench(tmp_path, *instances, **runner))
        return benches[-1]

    return make
