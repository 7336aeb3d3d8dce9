"""From a configuration to a run that may begin: everything is checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.files import from_home
from merlin.batch.cores import usable_cores
from merlin.errors import (
    ConfigError,
    Diagnostic,
    NotADataSetError,
    ShardError,
    TrainingError,
    UsageError,
    command_line,
)
from merlin.shards.ensemble import Ensemble, find_data_set, open_shards
from merlin.train.config import CHANGEABLE, Fields, Model, TrainConfig
from merlin.train.config_checks import check_data, check_model_options, check_trainee
from merlin.train.config_defaults import with_defaults
from merlin.train.config_file import ConfigFile, load_config
from merlin.train.data import Classes, ColumnSelection, TrainingData
from merlin.train.loading.columns import Columns
from merlin.train.loading.normalise import Normaliser
from merlin.train.models.base import Shapes, Trainee
from merlin.train.models.inputs import predict_batch
from merlin.train.models.outputs import require_predictions
from merlin.train.models.registry import (
    MODEL_ERRORS,
    build,
    find,
    require_code,
    require_consent,
    resolved,
    version_of,
)
from merlin.train.parallel.world import choose_device
from merlin.train.quantities import Quantities
from merlin.train.run_directory import (
    RunDirectory,
    RunFacts,
    SplitRule,
    create_run,
    environment_facts,
    new_path,
    write_config,
)
from merlin.train.run_paths import CONFIG, is_run
from merlin.train.widths import MOST, obstacle

_TRIED = 4  # samples that a model is tried with


class Prepared(Struct, frozen=True):
    """A run that may begin, or go on."""

    config: TrainConfig  # with the columns that it uses, and where the data is
    facts: RunFacts
    normaliser: Normaliser
    run: RunDirectory | None  # one that has begun already
    warnings: tuple[Diagnostic, ...] = ()

    def begin(self) -> RunDirectory:
        """Make the run directory; if there is one, let it hold the present configuration."""
        if self.run is not None:
            write_config(self.run.path, self.config)
            return self.run
        return create_run(new_path(self.config), self.config, self.facts, self.normaliser)


def prepare(
    path: Path, words: Sequence[str] = (), num_local: int = 1, *, trust_code: bool = False
) -> Prepared:
    """Check a configuration, or a run directory that is to go on; `num_local` processes share this machine.

    A user's own model that only the run directory names needs `trust_code`.

    Raises ConfigError with every finding; NotADataSetError or ShardError for the data; UsageError and TrainingError.
    """
    if path.is_dir():
        if not is_run(path):
            raise UsageError(
                f"{path} is no training run: it has no run.json; give a configuration, or a run directory"
            )
        file = load_config(path / CONFIG, [*words, f"directory={path}"])
    else:
        file = load_config(path, words)
    is_given = file.place("model", "name")[0] < 0  # by a word of the command line
    if (path.is_dir() or (path.name == CONFIG and is_run(path.parent))) and not is_given:
        require_consent(file.config.model.name, file.where("model", "name"), trust_code=trust_code)
    prepared = check(file, num_local)
    begun = _begun(prepared.config)
    return prepared if begun is None else _continued(prepared, begun)


def check(file: ConfigFile, num_local: int = 1) -> Prepared:
    """Check a configuration against its data and its model; nothing is written."""
    given = from_home(file.config.data)
    try:
        data_path = find_data_set(given)
    except NotADataSetError as error:
        hint = "" if given.is_absolute() else "; relative paths count from the current directory"
        raise NotADataSetError(f"data: {error}{hint}") from error
    ens = open_shards(data_path)
    _check_files(ens)
    selection = check_data(file, ens)
    check_model_options(file)
    file.raise_errors()
    config = _resolved(file.config, selection, data_path)
    _check_precision(file)
    data = TrainingData(ens, selection, _fit(file, ens, selection), config)
    trainee = build_trainee(config, selection.shapes)
    num_samples, begun = len(ens.splits[config.splits.train]), _begun(config)
    before = None if begun is None else load_config(begun.config_path).config
    config = with_defaults(config, num_samples, len(trainee.phases), before)
    data = TrainingData(ens, selection, data.normaliser, config)
    check_trainee(file, config, trainee)
    _check_width(file, config, selection.shapes, trainee)
    file.raise_errors()
    if begun is None:
        trainee.start(data.normaliser)
    try_model(config, trainee, data, is_new=begun is None)
    _check_shares(file, data)
    file.raise_errors()
    threads = config.training.threads or max(1, usable_cores() // num_local)
    facts = _facts(config, data, trainee, data_path, threads)
    return Prepared(config, facts, data.normaliser, None, file.warnings)


def _facts(
    config: TrainConfig, data: TrainingData, trainee: Trainee, data_path: Path, threads: int
) -> RunFacts:
    shapes, ens = data.shapes, data.ens
    return RunFacts(
        **environment_facts(),
        seed=config.seed,
        config_digest=config.digest,
        data_path=str(data_path.resolve()),
        data_digest=ens.manifest.content_digest,
        num_samples={name: len(rows) for name, rows in ens.splits.items()},
        inputs=shapes.inputs,
        scalars=shapes.scalars,
        images=shapes.images,
        num_parameters=sum(p.numel() for p in trainee.parameters()),
        threads=threads,
        quantities=Quantities.of(data.selection),
        model_version=version_of(config.model.name),
        input_images=shapes.input_images,
        classes=dict(shapes.classes),
        splits=SplitRule.of(ens.manifest),
    )


def open_data(run: RunDirectory, config: TrainConfig) -> TrainingData:
    """The data of a run that was checked."""
    ens = open_shards(config.data)
    columns, facts = Columns(ens), run.facts()
    inputs = facts.inputs if config.fields.inputs is None else config.fields.inputs
    selection = ColumnSelection(
        tuple(columns.input(name) for name in inputs),
        tuple(columns.fields[name] for name in facts.scalars),
        tuple(columns.fields[name] for name in facts.images),
        tuple(Classes(columns.fields[name], values) for name, values in facts.classes.items()),
    )
    return TrainingData(ens, selection, run.normaliser(), config)


def build_trainee(config: TrainConfig, shapes: Shapes, capacity: float | None = None) -> Trainee:
    """The model of a configuration, or of another `capacity`. Raises TrainingError if it cannot be built."""
    options = config.model.options
    if capacity is not None and capacity != configured_capacity(config):
        options["capacity"] = capacity
    try:
        return build(config.model.name, shapes, options)
    except MODEL_ERRORS as error:
        raise TrainingError(
            f"the model {config.model.name} cannot be built: {type(error).__name__}: {error}"
        ) from error


def configured_capacity(config: TrainConfig) -> float:
    """The factor of the model's widths. Raises TrainingError for a model that has none."""
    capacity = find(config.model.name).capacity(config.model.options)
    if capacity is None:
        raise TrainingError(f"the model {config.model.name} has no option capacity")
    return capacity


def _check_width(file: ConfigFile, config: TrainConfig, shapes: Shapes, trainee: Trainee) -> None:
    """Note what keeps the width of a model from being mutated, by building it as narrow as it may become."""
    if not config.mutates_width:
        return
    try:
        why = obstacle(trainee, build_trainee(config, shapes, configured_capacity(config) / MOST))
    except TrainingError as error:
        why = str(error)
    if why is not None:
        path = ("tournament", "mutation", "width")
        file.error(path, f"the width of the model {config.model.name} cannot change: {why}", "leave it out")


def _begun(config: TrainConfig) -> RunDirectory | None:
    """The run that is in the directory already; None if there is none."""
    if config.directory is None or not is_run(Path(config.directory)):
        return None
    return RunDirectory(Path(config.directory))


def _continued(prepared: Prepared, run: RunDirectory) -> Prepared:
    """The run that has begun in the directory. Raises UsageError if it is another one."""
    facts = run.facts()
    if facts.config_digest != prepared.config.digest:
        raise UsageError(
            f"{run.path} holds a run of another configuration: {_differences(run, prepared.config)}\n"
            "  Choose another directory, or give these the values they had."
        )
    name = prepared.config.model.name
    recorded = {"name": name, "version": facts.model_version, "merlin": facts.code_version}
    require_code(name, recorded, str(run.path))
    if facts.data_digest != prepared.facts.data_digest:
        raise UsageError(
            f"{run.path} was trained on other data than {prepared.config.data} has now; begin a new run"
        )
    if others := facts.other_splits(prepared.facts.splits):
        raise UsageError(
            f"{run.path} was trained on other samples of {prepared.config.data}: {others}; "
            "give the data set the splits that it had, or begin a new run"
        )
    return Prepared(prepared.config, facts, run.normaliser(), run, prepared.warnings)


def _differences(run: RunDirectory, config: TrainConfig) -> str:
    before = _flat(load_config(run.config_path).config.to_json())
    now = _flat(config.to_json())
    free = {".".join(path) for path in CHANGEABLE}
    changed = [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not any(key == f or key.startswith(f"{f}.") for f in free)
    ]
    return "; ".join(changed[:8]) or "it was written by another version"


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def _check_files(ens: Ensemble) -> None:
    """Raise ShardError if a shard is missing, or has not the size that it had."""
    for shard in ens.manifest.shards:
        path = ens.path / shard.file
        size = path.stat().st_size if path.is_file() else None
        if size != shard.size_bytes:
            what = "is missing" if size is None else f"has {size:,} bytes, and had {shard.size_bytes:,}"
            raise ShardError(
                f"{path} {what}; {command_line('shards', 'verify', ens.path)} tells which samples are concerned"
            )


def _resolved(config: TrainConfig, selection: ColumnSelection, data_path: Path) -> TrainConfig:
    fields = Fields(
        inputs=tuple(c.name for c in selection.inputs),
        scalars=tuple(c.name for c in selection.scalars),
        images=tuple(c.name for c in selection.images),
        classes=tuple(found.column.name for found in selection.classes) or None,
    )
    name = config.model.name
    model = Model(name=name, **resolved(name, config.model.options))
    places = {
        key: str(from_home(given))
        for key, given in (("output", config.output), ("directory", config.directory))
        if given is not None
    }
    data = str(data_path.resolve())
    return config.model_copy(update={"fields": fields, "data": data, "model": model, **places})


def _check_precision(file: ConfigFile) -> None:
    training = file.config.training
    try:
        device = choose_device(training.device, 0)
    except TrainingError as error:
        file.error(("training", "device"), str(error))
        return
    if training.precision == "fp16" and device.type != "cuda":
        file.error(("training", "precision"), "fp16 needs a GPU", "write bf16 or fp32")


def _fit(file: ConfigFile, ens: Ensemble, selection: ColumnSelection) -> Normaliser:
    try:
        return Normaliser.fit(ens, selection.methods(file.config.normalise))
    except (UsageError, TypeError) as error:
        raise ConfigError(f"{file.findings.file}: normalise: {error}") from error


def try_model(config: TrainConfig, trainee: Trainee, data: TrainingData, *, is_new: bool) -> None:
    """Run each phase, the metrics and `predict` once, on a few samples.

    `predict` is left out where it may need what `fit` or a checkpoint has set up.

    Raises TrainingError for what is wrong with the model.
    """
    name, quantities = config.model.name, Quantities.of(data.selection)
    rows = data.ens.splits[config.splits.train][: quantities.num_tried(_TRIED)]
    few = replace(data, ens=data.ens.take(rows))  # of all samples, the scalars would be read
    every = data.shapes.with_channels(few.dataset(None)[:])
    batch = {key: values[:_TRIED] for key, values in every.items()}
    num = min(len(rows), _TRIED)
    try:
        for phase in trainee.phases:
            losses = trainee(batch, phase)
            if losses["loss"].shape != ():
                raise TrainingError(f"the model {name}: the loss of phase '{phase}' is no scalar")
        trainee.eval()
        with torch.no_grad():
            metrics = trainee.metrics(batch)
            if is_new and not trainee.num_fitted:
                with suppress(NotImplementedError, UsageError):  # models that predict nothing from inputs
                    made = predict_batch(trainee, every, data.shapes.input_images)
                    require_predictions(name, made, len(rows), quantities.predicted_shapes)
    except MODEL_ERRORS as error:
        raise TrainingError(
            f"the model {name} fails on a batch of this data: {type(error).__name__}: {error}\n"
            "  merlin -lvl DEBUG train … shows where."
        ) from error
    wrong = [key for key, value in metrics.items() if value.shape != (num,)]
    if wrong:
        raise TrainingError(f"the model {name}: metrics have one value per sample, these have not: {wrong}")
    if missing := set(trainee.directions()) - set(metrics):
        raise TrainingError(f"the model {name} announces metrics that it does not compute: {sorted(missing)}")


def _check_shares(file: ConfigFile, data: TrainingData) -> None:
    """Check that every trainer has a batch to train on, and something to judge by."""
    config, sizes = data.config, data.share_sizes("train")
    if min(sizes) < config.training.batch_size:
        poorest = sizes.index(min(sizes))
        file.error(
            ("training", "batch_size"),
            f"trainer {poorest} of {len(sizes)} has {sizes[poorest]:,} samples to train on, "
            f"less than one batch of {config.training.batch_size}",
            "lower training.batch_size or tournament.trainers",
        )
    if config.is_tournament:
        _check_interval(file, config, min(sizes))
        shares = data.share_sizes("tournament")
        if not min(shares) and not config.averages:
            file.error(
                ("tournament", "tournament_fraction"),
                f"trainer {shares.index(0)} has no samples to judge models with",
                "raise tournament.tournament_fraction, or lower tournament.trainers",
            )


def _check_interval(file: ConfigFile, config: TrainConfig, least_samples: int) -> None:
    """Check that there is a round before the end of the run; otherwise the trainers would never meet."""
    training, interval = config.training, config.tournament.interval
    steps = training.num_steps(least_samples // training.batch_size)
    if 0 < steps <= interval and not config.averages:
        file.error(
            ("tournament", "interval"),
            f"no round would be played: the run of {steps:,} steps is over before its first one, after {interval:,}",
            "lower tournament.interval, or write tournament.strategy: none for independent trainers",
        )
