"""Properties take the time that they take: on a busy machine any example may be slow."""

from __future__ import annotations

from effort import repeats
from hypothesis import HealthCheck, settings

usual = settings.get_profile(settings.get_current_profile_name())  # in CI it draws the same each time
settings.register_profile(
    "unhurried",
    parent=usual,
    max_examples=repeats(40, 1000),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("unhurried")
