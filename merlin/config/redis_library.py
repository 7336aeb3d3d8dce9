"""Loads redis-py without its optional metrics, which Merlin does not use."""

from __future__ import annotations

import sys

_SDK = ("opentelemetry.metrics", "opentelemetry.sdk.metrics")


def load_redis() -> None:
    """Load redis-py, unless it is loaded, without the metrics of OpenTelemetry, which take a third of its time.

    A program that uses OpenTelemetry has loaded it before; then nothing is left out.
    """
    if "redis" in sys.modules:
        return
    absent: dict[str, None] = {} if "opentelemetry" in sys.modules else dict.fromkeys(_SDK)
    sys.modules.update(absent)  # type: ignore[arg-type]  # None is Python's way to say that there is no such module
    try:
        import redis

        assert redis
    finally:
        for name in absent:
            del sys.modules[name]
