"""A training run on disk.

config.yaml            the configuration, every key with its value
run.json               what the run is: versions, seed, the data's digest and splits, the shapes of a batch
normalise.json         how the columns are normalised
trainers/<k>/          log, metrics.jsonl, tensorboard/, checkpoints/
tournament/            what trainers exchange
best/                  the best model of all trainers: model.pt, normalise.json, best.json
best.lock              held by the process that writes best/
"""

from __future__ import annotations

import json
import platform
import socket
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct, field

from merlin.base.clock import local_now
from merlin.base.files import replacing, write_text
from merlin.base.locks import locked
from merlin.base.records import FileFormat, as_kind, to_plain
from merlin.base.yaml_text import yaml_text
from merlin.errors import TrainingError, command_line
from merlin.shards.format.manifest_file import DataSet
from merlin.shards.format.regular_file import read_json
from merlin.train.checkpoint import read_best
from merlin.train.config import TrainConfig
from merlin.train.loading.normalise import Normaliser
from merlin.train.models.base import Shapes
from merlin.train.progress import Judge, deciding_metric
from merlin.train.quantities import Quantities
from merlin.train.run_paths import BEST, CONFIG, FACTS, MODEL_FORMAT, NORMALISE, RunPaths
from merlin.train.state_file import State, write_state
from merlin.workspace.prepare import code_version

FORMAT = FileFormat("merlin-run", 1)


class SplitRule(Struct, frozen=True):
    """How a data set divides its samples among splits; the order of the splits counts."""

    fractions: tuple[tuple[str, float], ...]
    seed: int

    @staticmethod
    def of(data: DataSet) -> SplitRule:
        return SplitRule(tuple(data.splits.fractions.items()), data.splits.seed)

    def __str__(self) -> str:
        return f"{', '.join(f'{name} {part:g}' for name, part in self.fractions)} with seed {self.seed}"


class RunFacts(Struct, frozen=True):
    """What a run is, from its beginning on."""

    created: str
    code_version: str
    torch: str
    python: str
    host: str
    seed: int
    config_digest: str
    data_path: str  # absolute
    data_digest: str
    num_samples: dict[str, int]  # by split
    inputs: tuple[str, ...]
    scalars: tuple[str, ...]
    images: dict[str, tuple[int, int, int]]  # (C, H, W)
    num_parameters: int
    threads: int  # of a process; sums differ in their last bits with another number
    quantities: Quantities = field(default_factory=Quantities)
    model_version: int | str | None = None
    input_images: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    classes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # the values of a class, ascending
    splits: SplitRule | None = None  # None: an earlier version did not note it

    def other_splits(self, now: SplitRule | None) -> str:
        """In which way the data's splits were others when the run began; "" if they were the same."""
        if self.splits is None or self.splits == now:
            return ""
        return f"its splits were {self.splits}, and are {now}"

    @property
    def shapes(self) -> Shapes:
        return Shapes.of(self.inputs, self.scalars, self.images, self.input_images, self.classes)


def environment_facts() -> dict[str, str]:
    """The time, and the versions and the host of a run that begins now, as `RunFacts` has them."""
    return {
        "created": local_now(),
        "code_version": code_version(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "host": socket.gethostname(),
    }


class RunDirectory(RunPaths):
    """The directory of a run that has begun, with what is said of the run."""

    def normaliser(self) -> Normaliser:
        return Normaliser.load(self.path / NORMALISE)

    def facts(self) -> RunFacts:
        """The facts of the run. Raises TrainingError if they cannot be read."""
        path = self.path / FACTS
        try:
            data = read_json(path)
        except (OSError, ValueError) as error:
            raise TrainingError(f"{path} cannot be read: {error}") from error
        if wrong := FORMAT.mismatch(data):
            raise TrainingError(f"{path}: {wrong}")
        try:
            if unknown := data.keys() - {*FORMAT.head(), *RunFacts.__struct_fields__}:
                raise ValueError(f"unknown facts {sorted(unknown)}")
            return as_kind(data, RunFacts)
        except ValueError as error:
            raise TrainingError(f"{path} is damaged: {error}") from error


def create_run(path: Path, config: TrainConfig, facts: RunFacts, normaliser: Normaliser) -> RunDirectory:
    """Begin a run in `path`, which may exist; `run.json` is written last, and makes it a run."""
    write_config(path, config)
    normaliser.save(path / NORMALISE)
    data = {**FORMAT.head(), **to_plain(facts)}
    write_text(path / FACTS, json.dumps(data, indent=1) + "\n")
    return RunDirectory(path)


def write_config(path: Path, config: TrainConfig) -> None:
    write_text(path / CONFIG, yaml_text(config.to_json()))


def new_path(config: TrainConfig) -> Path:
    """Where a new run goes: the directory that is configured, or <output>/<name>_<time>."""
    if config.directory is not None:
        return Path(config.directory)
    stem = f"{config.name}_{datetime.now():%Y%m%d-%H%M%S}"
    for number in range(1000):
        path = Path(config.output) / (f"{stem}-{number}" if number else stem)
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            continue
    raise TrainingError(f"there are too many runs called {stem} in {config.output}")


def publish_best(run: RunDirectory, config: TrainConfig) -> dict[str, Any] | None:
    """Put the best model of all trainers into `best/`; returns its facts, None if no trainer was validated yet.

    Each trainer may do this when it ends, one after the other: the last one sees the models of all. Raises
    CheckpointError.
    """
    with locked(run.path / "best.lock", wait=True):
        head = _best_of_all(run, deciding_metric(config))
        if head is None or _published(run) == (found := _facts_of(head)):
            return None if head is None else found
        best = read_best(run.trainer(head["trainer_index"]).checkpoints)
        return None if best is None else _publish(run, config, {**head, **best})


def _best_of_all(run: RunDirectory, metric: str) -> State | None:
    """The best checkpoint of those that were judged by `metric`, with its trainer; None if there is none at all.

    If none was judged by it yet, because the run goes on with another metric, those count that are judged as the first.
    """
    best: State | None = None
    for index in run.trainers():
        state = read_best(run.trainer(index).checkpoints, tensors=False)
        if state is None or state["progress"]["best"] is None:
            continue
        if best is None or _is_better(state, best, metric):
            best = {**state, "trainer_index": index}
    return best


def _is_better(state: State, than: State, metric: str) -> bool:
    judge = state["judge"]
    if judge != than["judge"]:
        return bool(judge["metric"] == metric != than["judge"]["metric"])
    return Judge(judge["metric"], judge["direction"]).is_better(
        state["progress"]["best"], than["progress"]["best"]
    )


def _facts_of(best: State) -> dict[str, Any]:
    return {
        "trainer": best["trainer_index"],
        "step": best["step"],
        **best["judge"],
        "value": best["progress"]["best"],
        "metrics": best["progress"]["best_metrics"],
    }


def _published(run: RunDirectory) -> dict[str, Any] | None:
    """What `best/` says of its model; None if there is none."""
    try:
        found: dict[str, Any] = json.loads((run.best / BEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if (run.best / "model.pt").is_file() else None


def _publish(run: RunDirectory, config: TrainConfig, best: State) -> dict[str, Any]:
    """Write `best/`, and return what it says of the model."""
    found = _facts_of(best)
    facts = run.facts()
    options, capacity = config.model.options, best["trainer"].get("capacity")
    if capacity is not None:  # that of the best model, whose width may have changed
        options["capacity"] = capacity
    model = {
        **MODEL_FORMAT.head(),
        "model": {**best["code"], "options": options},
        "shapes": facts.shapes.to_json(),
        "quantities": to_plain(facts.quantities),
        "run": {"created": facts.created, "data_path": facts.data_path, "data_digest": facts.data_digest},
        "state_dict": {**best["trainer"]["model"], **(best["trainer"]["average"] or {})},
        **found,
    }
    with replacing(run.best / "model.pt") as temporary:
        write_state(temporary, model)
    run.normaliser().save(run.best / NORMALISE)
    write_text(run.best / BEST, json.dumps(found, indent=1) + "\n")
    return found


def resume_command(run: RunDirectory, config: TrainConfig) -> str:
    """The command to resume the run, for its owner, who trusts the model that it names."""
    return command_line("train", run.path, *(["--trust-code"] if ":" in config.model.name else []))
