"""The configuration of a training run as frozen, typed objects; the one place that knows every key.

What needs the data set or the model to be checked (fields, splits, options of a model) is in `config_checks`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from merlin.base.document.field_types import Block, Count, Flag, Name, Positive, Text, TextList, optional
from merlin.base.document.scalars import Problem, shown, to_float, to_int, typed

DEFAULT_EPOCHS = 10
METHODS = ("standard", "minmax", "log", "scale", "none")
Precision = Literal["fp32", "bf16", "fp16"]
Strategy = Literal["averaging", "random_pairwise", "truncation", "regularised_evolution", "none"]


def _positive(value: Any) -> float:
    number = to_float(value)
    if number <= 0:
        raise Problem(f"must be above 0, not {number:g}")
    return number


def _fraction(value: Any) -> float:
    number = to_float(value)
    if not 0.0 <= number < 1.0:
        raise Problem(f"must be in [0, 1), not {number:g}")
    return number


def _method(value: Any) -> str | dict[str, Any] | None:
    """The name of a method, or a mapping of its name and options; None leaves values as they are."""
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
AtLeast0 = Annotated[
    float,
    PlainValidator(lambda value: to_float(value, 0.0)),
    WithJsonSchema({"type": "number", "minimum": 0}),
]
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
    """What of the data set is used; by default everything that is numeric and varies."""

    inputs: TextList | None = optional(
        "Inputs and parameters, and fields that are numbers, series of one axis or images. "
        "Default: all numeric inputs and parameters that vary."
    )
    scalars: TextList | None = optional(
        "Fields of kind scalar. Default: all others that vary, but none beside classes."
    )
    images: TextList | None = optional(
        "Fields of kind image. Default: all others that vary in each channel, but none beside classes."
    )
    classes: TextList | None = optional("Fields whose whole numbers tell a sample's class. Default: none.")


class Splits(Block):
    train: Name = optional("The split that is trained on.", "train")
    validation: Name = optional("The split that is reported.", "validation")


class Model(Block):
    """What is trained; further keys are options of the model."""

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True)

    name: Name = Field(description='A model of merlin.train.models, or your own as "module:callable".')

    @property
    def options(self) -> dict[str, Any]:
        """The options as YAML types them."""
        return {key: typed(value) for key, value in (self.model_extra or {}).items()}


class PhaseOptimizer(Block):
    """The options of the optimiser that differ in one phase."""

    lr: Above0 | None = optional("Learning rate.")
    betas: Betas | None = optional("Of adam and adamw.")
    weight_decay: AtLeast0 | None = optional("Weight decay.")
    momentum: Fraction | None = optional("Of sgd.")


class Optimizer(Block):
    """One optimiser for each phase of the model, all of this kind."""

    name: Literal["adam", "adamw", "sgd"] = optional("Kind of optimiser.", "adam")
    lr: Above0 = optional("Learning rate, before the schedule.", 1e-3)
    betas: Betas = Field(default=(0.9, 0.999), description="Of adam and adamw.")
    weight_decay: AtLeast0 = optional("Weight decay; decoupled for adamw, L2 else.", 0.0)
    momentum: Fraction = optional("Of sgd.", 0.0)
    phases: dict[str, PhaseOptimizer] = Field(
        default_factory=dict, description="What single phases of the model have different."
    )


class Schedule(Block):
    """The learning rate as a function of the step, relative to the optimiser's."""

    name: Literal["constant", "cosine", "step"] = optional(
        "Kind; cosine ends with the last step of the run.", "constant"
    )
    warmup_steps: Count = optional("Steps in which the learning rate rises linearly.", 0)
    final: Fraction = optional("Of cosine: where it ends, relative to lr.", 0.0)
    every: Steps = optional("Of step: steps between two changes.", 1000)
    gamma: Above0 = optional("Of step: the factor of each change.", 0.5)


class EarlyStopping(Block):
    metric: Name = optional("A metric of the model, on the validation split.", "loss")
    patience: Positive = optional("Validations without improvement before the end.", 10)
    min_delta: AtLeast0 = optional("What counts as an improvement.", 0.0)


class Training(Block):
    """The training loop."""

    epochs: Positive | None = optional("Length of the run; 10, unless steps is given.")
    steps: Positive | None = optional("Length of the run in optimiser steps.")
    batch_size: Positive = optional("Samples of a step of one trainer, all its ranks together.", 128)
    precision: Precision = optional("bf16 and fp16 are mixed precision.", "fp32")
    accumulate: Positive = optional(
        "Parts that a rank's batch is computed in: less memory, the same gradients.", 1
    )
    clip_norm: Above0 | None = optional("Greatest norm of a phase's gradients.")
    compile: Flag = optional("torch.compile the model.", False)
    ema: Fraction | None = optional(
        "Decay of a moving average of the weights, which then is what is validated."
    )
    early_stopping: EarlyStopping | None = optional("End when nothing improves.")
    validate_every: Steps | None = optional("Steps; default: each epoch.")
    checkpoint_every: Steps | None = optional("Steps; default: each validation.")
    keep: Positive = optional("Checkpoints kept, beside the best.", 3)
    log_every: Steps = optional("Steps that a line of metrics is the mean of.", 50)
    nonfinite_limit: Positive = optional(
        "Steps in a row with a loss that is no number before the run ends.", 10
    )
    device: Text = optional("auto, cpu, cuda or cuda:N.", "auto")
    threads: Positive | None = optional(
        "CPU threads of a process; default: the cores divided among processes."
    )
    deterministic: Flag = optional(
        "On a GPU: only deterministic kernels, which are slower. A CPU always is.", False
    )

    def num_steps(self, per_epoch: int) -> int:
        """The steps of the run, given those of an epoch."""
        return self.steps or (self.epochs or DEFAULT_EPOCHS) * per_epoch


class Loading(Block):
    """How batches are read."""

    num_workers: Count = optional("Processes that read; for compressed data sets.", 0)
    prefetch: Count | None = optional("Batches read ahead; default: 2, or 0 where all lies in memory.")
    partition: Literal["hash", "equal"] = optional(
        "How samples are dealt to trainers: by hash of their id, or evenly.", "hash"
    )


class Metric(Block):
    name: Name = Field(description="A metric of the model.")
    direction: Literal["min", "max"] | None = optional("What is better; default: what the model says.")


class Mutation(Block):
    """Greatest factors by which a copied trainer's hyper-parameters are multiplied or divided."""

    lr: Factor = optional("Learning rate.", 1.2)
    weight_decay: Factor = optional("Weight decay.", 1.0)
    width: Factor = optional("All widths of the model, by its option capacity.", 1.0)


class Tournament(Block):
    """Trainers and how they compete."""

    trainers: Positive = optional("Trainers, each with its own share of the samples.", 1)
    ranks_per_trainer: Positive = optional("Processes that share a trainer's batches.", 1)
    strategy: Strategy = optional(
        "What a round does; none: independent trainers. Default: by the size of a share.", "random_pairwise"
    )
    interval: Steps = optional("Steps between two rounds; default: by the strategy.", 500)
    interval_end: Steps | None = optional(
        "Of averaging: what the interval shrinks to at the end of the run; default: by the transport."
    )
    merge: Flag = optional(
        "Of random_pairwise: the mean of both models is a third candidate; default: by the size of a share.",
        False,
    )
    lr_scale: Above0 | None = optional(
        "What the optimiser's learning rates are multiplied by; default: by the strategy and the trainers."
    )
    metrics: tuple[Metric, ...] = optional(
        "What decides, on the trainer's own tournament samples; default: loss.", ()
    )
    exchange: TextList = Field(default=("all",), description="all, or named parts of the model.")
    transport: Literal["files", "process_group"] = optional(
        "files: trainers come and go as they like; process_group: all from beginning to end.", "files"
    )
    wait: AtLeast0 = optional(
        "Of files: how long a model of another trainer is waited for, in durations of an interval; "
        "0 takes the newest that is there.",
        5.0,
    )
    top: Positive | None = optional(
        "Of truncation: how many trainers the others copy; default: half of them."
    )
    sample: Positive | None = optional(
        "Of regularised_evolution: trainers of which the best is copied; default: half of them."
    )
    tournament_fraction: Fraction = optional("Share of a trainer's samples that only decides rounds.", 0.1)
    mutation: Mutation = Field(
        default_factory=Mutation, description="Of truncation and regularised_evolution."
    )


class TrainConfig(Block):
    """A training run."""

    data: Name = Field(description="A data set, or a workspace with one.")
    output: Name = optional("Where run directories <name>_YYYYmmdd-HHMMSS are made.", "runs")
    directory: Text | None = optional("The run directory itself; if it holds this run, that is resumed.")
    name: Name = optional("Name of the run.", "train")
    seed: Count = optional("Of initial weights, shares and orders of the samples.", 0)
    fields: Fields = Field(default_factory=Fields, description="What of the data set is used.")
    splits: Splits = Field(default_factory=Splits, description="Which splits are used.")
    normalise: dict[str, NormaliseMethod] = Field(
        default_factory=dict,
        description="Methods for inputs, scalars, images, or single fields; default: standard.",
    )
    model: Model = Field(description="What is trained.")
    optimizer: Optimizer = Field(default_factory=Optimizer, description="How it is optimised.")
    schedule: Schedule = Field(default_factory=Schedule, description="The learning rate.")
    training: Training = Field(default_factory=Training, description="The loop.")
    loader: Loading = Field(default_factory=Loading, description="How batches are read.")
    tournament: Tournament = Field(default_factory=Tournament, description="Trainers and how they compete.")

    @property
    def is_tournament(self) -> bool:
        """True if rounds are played."""
        return self.tournament.trainers > 1 and self.tournament.strategy != "none"

    @property
    def averages(self) -> bool:
        """True if rounds replace all models by their mean."""
        return self.is_tournament and self.tournament.strategy == "averaging"

    @property
    def merges(self) -> bool:
        """True if models of several trainers may become one; for this they begin with the same weights."""
        return self.averages or (self.is_tournament and self.tournament.merge)

    @property
    def mutates_width(self) -> bool:
        """True if copies of a model may be wider or narrower than it."""
        copies = self.tournament.strategy in ("truncation", "regularised_evolution")
        return self.is_tournament and copies and self.tournament.mutation.width > 1.0

    @property
    def tournament_fraction(self) -> float:
        """Share of a trainer's samples that it does not train on."""
        decides = self.is_tournament and not self.averages
        return self.tournament.tournament_fraction if decides else 0.0

    def to_json(self) -> dict[str, Any]:
        """What `config.yaml` holds: every key with its value."""
        data: dict[str, Any] = self.model_dump(mode="json", warnings=False)
        if not self.fields.classes:  # runs that began before there were classes stay the same
            data["fields"].pop("classes")
        data["model"] = {"name": self.model.name, **self.model.options}
        if self.tournament.strategy != "averaging":  # so do those that began before models were merged
            for key, usual in (("interval_end", None), ("merge", False), ("lr_scale", None)):
                if data["tournament"][key] == usual:
                    data["tournament"].pop(key)
        return data

    @property
    def digest(self) -> str:
        """The digest of everything that changes the result, which is all but `CHANGEABLE`."""
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
