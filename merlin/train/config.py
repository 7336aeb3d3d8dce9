"""The configuration of a training run as frozen, typed objects; the one place that knows every key.

What needs the data set or the model to be checked (fields, splits, options of a model) is in `config_checks`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from merlin.base.document.field_types import Block, Count, Flag, Name, Positive, Text, TextList
from merlin.base.document.scalars import Problem, shown, to_float, to_int, typed

DEFAULT_EPOCHS = 10
METHODS = ("standard", "minmax", "log", "scale", "none")
Precision = Literal["fp32", "bf16", "fp16"]
Strategy = Literal["random_pairwise", "truncation", "regularised_evolution", "none"]


def _positive(value: Any) -> float:
    number = to_float(value)
    if number <= 0:
        raise Problem(f"must be above 0, not {number:g}")
    return number


def _not_negative(value: Any) -> float:
    return to_float(value, 0.0)


def _fraction(value: Any) -> float:
    number = to_float(value)
    if not 0.0 <= number < 1.0:
        raise Problem(f"must be in [0, 1), not {number:g}")
    return number


def _method(value: Any) -> str | dict[str, Any] | None:
    """The name of a method, or a mapping of its name and options; none means as it is."""
    value = typed(value)
    name = value.get("name", "") if isinstance(value, Mapping) else value
    if name is None or name == "none":
        return None
    if name not in METHODS:
        raise Problem(f"{shown(name)} is no normalisation", f"there are: {', '.join(METHODS)}")
    return dict(value) if isinstance(value, Mapping) else str(name)


def _betas(value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Problem("betas are a pair of numbers", "e.g. betas: [0.9, 0.999]")
    return _fraction(value[0]), _fraction(value[1])


def _factor(value: Any) -> float:
    number = to_float(value)
    if number < 1:
        raise Problem(f"a factor of a mutation must be at least 1, not {number:g}")
    return number


_NUMBER = WithJsonSchema({"type": "number"})
Above0 = Annotated[
    float, PlainValidator(_positive), WithJsonSchema({"type": "number", "exclusiveMinimum": 0})
]
AtLeast0 = Annotated[float, PlainValidator(_not_negative), WithJsonSchema({"type": "number", "minimum": 0})]
Fraction = Annotated[float, PlainValidator(_fraction), _NUMBER]
Factor = Annotated[float, PlainValidator(_factor), WithJsonSchema({"type": "number", "minimum": 1})]
Betas = Annotated[
    tuple[float, float],
    PlainValidator(_betas),
    WithJsonSchema({"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}),
]
NormaliseMethod = Annotated[
    Any,
    PlainValidator(_method),
    WithJsonSchema({"anyOf": [{"enum": [*METHODS, None]}, {"type": "object", "required": ["name"]}]}),
]
Steps = Annotated[
    int,
    PlainValidator(lambda value: to_int(value, 1)),
    WithJsonSchema({"type": "integer", "minimum": 1}),
]


class Fields(Block):
    """What of the data set is used; by default everything that is numeric."""

    inputs: TextList | None = Field(
        default=None,
        description="Inputs and parameters, and fields that are numbers, series of one axis or images. "
        "Default: all numeric inputs and parameters.",
    )
    scalars: TextList | None = Field(
        default=None, description="Fields of kind scalar. Default: all others, but none beside classes."
    )
    images: TextList | None = Field(
        default=None, description="Fields of kind image. Default: all others, but none beside classes."
    )
    classes: TextList | None = Field(
        default=None, description="Fields whose whole numbers tell a sample's class. Default: none."
    )


class Splits(Block):
    train: Name = Field(default="train", description="The split that is trained on.")
    validation: Name = Field(default="validation", description="The split that is reported.")


class Model(Block):
    """What is trained; further keys are options of the model."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    name: Name = Field(description='A model of merlin.train.models, or your own as "module:callable".')

    @property
    def options(self) -> dict[str, Any]:
        """The options as YAML types them."""
        return {key: typed(value) for key, value in (self.model_extra or {}).items()}


class PhaseOptimizer(Block):
    """What a phase has different."""

    lr: Above0 | None = Field(default=None, description="Learning rate.")
    betas: Betas | None = Field(default=None, description="Of adam and adamw.")
    weight_decay: AtLeast0 | None = Field(default=None, description="Weight decay.")
    momentum: Fraction | None = Field(default=None, description="Of sgd.")


class Optimizer(Block):
    """One optimiser for each phase of the model, all of this kind."""

    name: Literal["adam", "adamw", "sgd"] = Field(default="adam", description="Kind of optimiser.")
    lr: Above0 = Field(default=1e-3, description="Learning rate, before the schedule.")
    betas: Betas = Field(default=(0.9, 0.999), description="Of adam and adamw.")
    weight_decay: AtLeast0 = Field(default=0.0, description="Weight decay; decoupled for adamw, L2 else.")
    momentum: Fraction = Field(default=0.0, description="Of sgd.")
    phases: dict[str, PhaseOptimizer] = Field(
        default_factory=dict, description="What single phases of the model have different."
    )


class Schedule(Block):
    """The learning rate as a function of the step, relative to the optimiser's."""

    name: Literal["constant", "cosine", "step"] = Field(
        default="constant", description="Kind; cosine ends with the last step of the run."
    )
    warmup_steps: Count = Field(default=0, description="Steps in which the learning rate rises linearly.")
    final: Fraction = Field(default=0.0, description="Of cosine: where it ends, relative to lr.")
    every: Steps = Field(default=1000, description="Of step: steps between two changes.")
    gamma: Above0 = Field(default=0.5, description="Of step: the factor of each change.")


class EarlyStopping(Block):
    metric: Name = Field(default="loss", description="A metric of the model, on the validation split.")
    patience: Positive = Field(default=10, description="Validations without improvement before the end.")
    min_delta: AtLeast0 = Field(default=0.0, description="What counts as an improvement.")


class Training(Block):
    """The loop."""

    epochs: Positive | None = Field(default=None, description="Length of the run; 10, unless steps is given.")
    steps: Positive | None = Field(default=None, description="Length of the run in optimiser steps.")
    batch_size: Positive = Field(
        default=128, description="Samples of a step of one trainer, all its ranks together."
    )
    precision: Precision = Field(default="fp32", description="bf16 and fp16 are mixed precision.")
    accumulate: Positive = Field(
        default=1, description="Parts that a rank's batch is computed in: less memory, the same gradients."
    )
    clip_norm: Above0 | None = Field(default=None, description="Greatest norm of a phase's gradients.")
    compile: Flag = Field(default=False, description="torch.compile the model.")
    ema: Fraction | None = Field(
        default=None, description="Decay of a moving average of the weights, which then is what is validated."
    )
    early_stopping: EarlyStopping | None = Field(default=None, description="End when nothing improves.")
    validate_every: Steps | None = Field(default=None, description="Steps; default: each epoch.")
    checkpoint_every: Steps | None = Field(default=None, description="Steps; default: each validation.")
    keep: Positive = Field(default=3, description="Checkpoints kept, beside the best.")
    log_every: Steps = Field(default=50, description="Steps that a line of metrics is the mean of.")
    nonfinite_limit: Positive = Field(
        default=10, description="Steps in a row with a loss that is no number before the run ends."
    )
    device: Text = Field(default="auto", description="auto, cpu, cuda or cuda:N.")
    threads: Positive | None = Field(
        default=None, description="CPU threads of a process; default: the cores divided among processes."
    )
    deterministic: Flag = Field(
        default=False, description="On a GPU: only deterministic kernels, which are slower. A CPU always is."
    )


class Loading(Block):
    """How batches are read."""

    num_workers: Count = Field(default=0, description="Processes that read; for compressed data sets.")
    prefetch: Count | None = Field(
        default=None, description="Batches read ahead; default: 2, or 0 where all lies in memory."
    )
    partition: Literal["hash", "equal"] = Field(
        default="hash", description="How samples are dealt to trainers: by hash of their id, or evenly."
    )


class Metric(Block):
    name: Name = Field(description="A metric of the model.")
    direction: Literal["min", "max"] | None = Field(
        default=None, description="What is better; default: what the model says."
    )


class Mutation(Block):
    """Greatest factors by which a copied trainer's hyper-parameters are multiplied or divided."""

    lr: Factor = Field(default=1.2, description="Learning rate.")
    weight_decay: Factor = Field(default=1.0, description="Weight decay.")
    width: Factor = Field(default=1.0, description="All widths of the model, by its option capacity.")


class Tournament(Block):
    """Trainers and how they compete."""

    trainers: Positive = Field(default=1, description="Trainers, each with its own share of the samples.")
    ranks_per_trainer: Positive = Field(default=1, description="Processes that share a trainer's batches.")
    strategy: Strategy = Field(default="random_pairwise", description="none: independent trainers.")
    interval: Steps = Field(default=500, description="Steps between two rounds.")
    metrics: tuple[Metric, ...] = Field(
        default=(), description="What decides, on the trainer's own tournament samples; default: loss."
    )
    exchange: TextList = Field(default=("all",), description="all, or named parts of the model.")
    transport: Literal["files", "process_group"] = Field(
        default="files",
        description="files: trainers come and go as they like; process_group: all from beginning to end.",
    )
    wait: AtLeast0 = Field(
        default=5.0,
        description="Of files: how long a model of another trainer is waited for, in durations of an interval; "
        "0 takes the newest that is there.",
    )
    top: Positive | None = Field(
        default=None, description="Of truncation: how many trainers the others copy; default: half of them."
    )
    sample: Positive | None = Field(
        default=None,
        description="Of regularised_evolution: trainers of which the best is copied; default: half of them.",
    )
    tournament_fraction: Fraction = Field(
        default=0.1, description="Share of a trainer's samples that only decides rounds."
    )
    mutation: Mutation = Field(
        default_factory=lambda: Mutation(), description="Of truncation and regularised_evolution."
    )


class TrainConfig(Block):
    """A training run."""

    data: Name = Field(description="A data set, or a workspace with one.")
    output: Name = Field(default="runs", description="Where run directories <name>_YYYYmmdd-HHMMSS are made.")
    directory: Text | None = Field(
        default=None, description="The run directory itself; if it holds this run, that is resumed."
    )
    name: Name = Field(default="train", description="Name of the run.")
    seed: Count = Field(default=0, description="Of initial weights, shares and orders of the samples.")
    fields: Fields = Field(default_factory=lambda: Fields(), description="What of the data set is used.")
    splits: Splits = Field(default_factory=lambda: Splits(), description="Which splits are used.")
    normalise: dict[str, NormaliseMethod] = Field(
        default_factory=dict,
        description="Methods for inputs, scalars, images, or single fields; "
        "default: minmax for inputs, standard for scalars and for images, also among the inputs.",
    )
    model: Model = Field(description="What is trained.")
    optimizer: Optimizer = Field(default_factory=lambda: Optimizer(), description="How it is optimised.")
    schedule: Schedule = Field(default_factory=lambda: Schedule(), description="The learning rate.")
    training: Training = Field(default_factory=lambda: Training(), description="The loop.")
    loader: Loading = Field(default_factory=lambda: Loading(), description="How batches are read.")
    tournament: Tournament = Field(
        default_factory=lambda: Tournament(), description="Trainers and how they compete."
    )

    @property
    def is_tournament(self) -> bool:
        """Whether rounds are played."""
        return self.tournament.trainers > 1 and self.tournament.strategy != "none"

    @property
    def mutates_width(self) -> bool:
        """Whether copies of a model may be wider or narrower than it."""
        copies = self.tournament.strategy in ("truncation", "regularised_evolution")
        return self.is_tournament and copies and self.tournament.mutation.width > 1.0

    @property
    def tournament_fraction(self) -> float:
        """Share of a trainer's samples that it does not train on."""
        return self.tournament.tournament_fraction if self.is_tournament else 0.0

    def to_json(self) -> dict[str, Any]:
        """What `config.yaml` holds: every key with its value."""
        data: dict[str, Any] = self.model_dump(mode="json", warnings=False)
        if not self.fields.classes:  # runs that began before there were classes stay the same
            data["fields"].pop("classes")
        data["model"] = {"name": self.model.name, **self.model.options}
        return data

    @property
    def digest(self) -> str:
        """Of what makes the result what it is; equal for a run and what may continue it (`CHANGEABLE`)."""
        data = self.to_json()
        for path in CHANGEABLE:
            block = data
            for key in path[:-1]:
                block = block.get(key, {}) if isinstance(block, dict) else {}
            if isinstance(block, dict):
                block.pop(path[-1], None)
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


# What may differ when a run is resumed: its length, its place, and how it is watched
CHANGEABLE: tuple[tuple[str, ...], ...] = (
    ("name",),
    ("data",),  # compared by its content's digest
    ("output",),
    ("directory",),
    ("model", "autoencoder", "run"),  # compared by its weights' digest
    ("training", "epochs"),
    ("training", "steps"),
    ("training", "early_stopping"),
    ("training", "checkpoint_every"),
    ("training", "keep"),
    ("training", "log_every"),
    ("training", "nonfinite_limit"),
    ("training", "device"),
    ("training", "threads"),
    ("tournament", "ranks_per_trainer"),
    ("tournament", "wait"),
    ("loader", "num_workers"),
    ("loader", "prefetch"),
)

JSON_SCHEMA_ID = "https://merlin-ensembles/train.schema.json"


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of configurations, for editors."""
    from merlin.spec.schema import editor_schema

    return editor_schema(TrainConfig, JSON_SCHEMA_ID, "Merlin training configuration")
