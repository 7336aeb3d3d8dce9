"""What a tournament is when the configuration does not say: a rule from measurements, in docs/tournament.md."""

from __future__ import annotations

from typing import Any

from merlin.train.config import TrainConfig

AVERAGING_FROM = 16_000  # samples of a share, from which on trainers average
MERGING_FROM = 1_000  # and from which on the mean of two models is a candidate
AVERAGING_INTERVAL = {"process_group": 10, "files": 100}  # by transport: a round over files takes longer
MOST_LR_SCALE = 4.0


def with_defaults(config: TrainConfig, num_samples: int, num_phases: int) -> TrainConfig:
    """The configuration with every key of a tournament that was left out, given the samples to train on.

    A configuration with a strategy of its own keeps it. A model of several phases has parts that work against each
    other, which nobody has shown to be averaged well: it keeps the better of two.
    """
    tournament, given = config.tournament, config.tournament.model_fields_set
    if not config.is_tournament:
        return config
    found: dict[str, Any] = {}
    if not given & {"strategy", "merge"}:
        share = num_samples // tournament.trainers
        if num_phases == 1 and share >= AVERAGING_FROM:
            found["strategy"] = "averaging"
        elif num_phases == 1 and share >= MERGING_FROM:
            found["merge"] = True
    averages = found.get("strategy", tournament.strategy) == "averaging"
    if averages:
        usual = {
            "interval": max(AVERAGING_INTERVAL[tournament.transport], tournament.interval_end or 1),
            "interval_end": max(1, AVERAGING_INTERVAL[tournament.transport] // 10),
            "lr_scale": lr_scale(tournament.trainers),
        }
        found |= {key: value for key, value in usual.items() if key not in given}
        found["interval_end"] = min(
            found.get("interval_end", tournament.interval_end), found.get("interval", tournament.interval)
        )
    updates: dict[str, Any] = {"tournament": tournament.model_copy(update=found)}
    if averages and "name" not in config.schedule.model_fields_set:
        updates["schedule"] = config.schedule.model_copy(update={"name": "cosine"})
    return config.model_copy(update=updates)


def lr_scale(trainers: int) -> float:
    """The mean of K models has less noise, and bears longer steps: by the square root of K, up to four times."""
    return float(min(MOST_LR_SCALE, trainers**0.5))
