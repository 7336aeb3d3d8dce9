"""Defaults of a tournament: rules from measurements, which are in docs/benchmarks.md."""

from __future__ import annotations

from typing import Any

from merlin.train.config import TrainConfig

AVERAGING_FROM = 16_000  # samples of a share, from which on trainers average
MERGING_FROM = 1_000  # and from which on the mean of two models is a candidate
AVERAGING_INTERVAL = 100  # over files, where a round takes longer than in a process group
MOST_LR_SCALE = 8.0
LEAST_MEMORY, MOST_MEMORY = 10.0, 200.0  # steps that Adam's first moment lasts; 10 is its usual 0.9
MOST_JUDGING = 1_000  # samples of a share that only decide rounds; each round evaluates three models by them


def with_defaults(
    config: TrainConfig, num_samples: int, num_phases: int, begun: TrainConfig | None = None
) -> TrainConfig:
    """The configuration with every key of a tournament that was left out, given the samples to train on.

    A run that has begun with the configuration `begun` keeps what follows from its length, which may change.
    A configuration with a strategy of its own keeps it. A model of several phases has parts that work against
    each other, and nobody has shown that averaging them works: it keeps the better of two.
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
    if found.get("merge", tournament.merge) and "tournament_fraction" not in given:
        found["tournament_fraction"] = min(
            tournament.tournament_fraction, MOST_JUDGING * tournament.trainers / max(1, num_samples)
        )
    if averages:
        interval, end = averaging_intervals(tournament.transport, tournament.trainers)
        usual = {
            "interval": max(interval, tournament.interval_end or 1),
            "interval_end": end,
            "lr_scale": lr_scale(tournament.trainers),
        }
        found |= {key: value for key, value in usual.items() if key not in given}
        found["interval_end"] = min(
            found.get("interval_end", tournament.interval_end), found.get("interval", tournament.interval)
        )
    updates: dict[str, Any] = {"tournament": tournament.model_copy(update=found)}
    if averages and "name" not in config.schedule.model_fields_set:
        updates["schedule"] = config.schedule.model_copy(update={"name": "cosine"})
    return _with_betas(config.model_copy(update=updates), num_samples, num_phases, begun)


def averaging_intervals(transport: str, trainers: int) -> tuple[int, int]:
    """Steps from one round to the next, and the same at the end of the run.

    They are fewer with more trainers, because each trainer then makes fewer steps.
    """
    if transport == "files":
        return AVERAGING_INTERVAL, AVERAGING_INTERVAL // 10
    interval = max(1, min(10, 40 // trainers))
    return interval, min(5, interval)


def first_beta(interval: int, num_steps: int) -> float:
    """The first beta of Adam: how much of its first moment stays in a step.

    Moments are averaged in a round. If they last longer than the interval, most of each step is what all trainers have
    in common. But a run of few steps needs them short.
    """
    memory = max(50.0, 2.0 * interval)
    if memory > MOST_MEMORY:  # nothing useful would last as long
        memory = LEAST_MEMORY
    return round(1 - 1 / max(LEAST_MEMORY, min(memory, num_steps / 60)), 4)


def _with_betas(
    config: TrainConfig, num_samples: int, num_phases: int, begun: TrainConfig | None
) -> TrainConfig:
    optimizer, training = config.optimizer, config.training
    if not config.merges or num_phases > 1 or "betas" in optimizer.model_fields_set:
        return config
    share = num_samples // config.tournament.trainers
    num_steps = training.num_steps(share // training.batch_size)  # about; trainers may have a few more
    betas = first_beta(config.tournament.interval, num_steps), optimizer.betas[1]
    if begun is not None:
        betas = begun.optimizer.betas
    return config.model_copy(update={"optimizer": optimizer.model_copy(update={"betas": betas})})


def lr_scale(trainers: int) -> float:
    """The factor of the learning rate: the mean of K models has less noise, and allows longer steps.

    It is K up to 4, and then grows as the square root of K.
    """
    return float(min(trainers, 2 * trainers**0.5, MOST_LR_SCALE))
