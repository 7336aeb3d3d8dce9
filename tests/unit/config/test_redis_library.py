"""What is loaded together with redis-py."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_by(code: str) -> list[str]:
    code = f"import sys\n{code}\nprint(*sorted(sys.modules))"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()


LOAD = "from merlin.config.redis_library import load_redis; load_redis()"


def test_redis_is_loaded_without_open_telemetry_which_can_be_loaded_later() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    loaded = loaded_by(LOAD)
    assert "redis" in loaded and not any(name.startswith("opentelemetry.") for name in loaded)
    assert "opentelemetry.sdk.metrics" in loaded_by(f"{LOAD}\nimport opentelemetry.sdk.metrics")


def test_a_program_that_uses_open_telemetry_has_all_of_redis() -> None:
    pytest.importorskip("opentelemetry.sdk.metrics")
    assert "opentelemetry.sdk.metrics" in loaded_by(f"import opentelemetry\n{LOAD}")


def test_two_threads_may_load_redis_at_the_same_time() -> None:
    load = """
from concurrent.futures import ThreadPoolExecutor
from merlin.config.redis_library import load_redis
with ThreadPoolExecutor(2) as pool:
    list(pool.map(lambda _: load_redis(), range(2)))"""
    assert "redis" in loaded_by(load)
