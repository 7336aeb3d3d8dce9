"""Properties take the time that they take: on a busy machine any example may be slow."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "unhurried",
    parent=settings.get_profile(
        settings.get_current_profile_name()
    ),  # in CI one that draws the same each time
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")
