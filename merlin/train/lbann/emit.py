"""Writes a directory that LBANN trains from: the data set in its format, schemas, a script for its Python front end.

data/                    bundles and sample lists, as `merlin shards export --to lbann` makes them
data_schema.yaml         how values are normalised: as the configuration says
experiment_schema.yaml   which ones are used
weights/                 those that were trained before, as .npy files
train_lbann.py           the model, its losses, optimisers, metrics and the tournament
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from math import prod
from pathlib import Path
from pprint import pformat
from typing import Any, cast

import numpy as np
from msgspec import Struct
from torch import nn

from merlin.base.files import replacing, write_text
from merlin.errors import Diagnostic, UsageError
from merlin.shards.ensemble import open_shards
from merlin.shards.export.base import ExportOptions
from merlin.shards.export.lbann_schemas import write_schemas
from merlin.shards.export.run import export
from merlin.shards.export.view import ExportColumn, View
from merlin.train.config import TrainConfig
from merlin.train.data import ColumnSelection, OnProgress, TrainingData
from merlin.train.lbann.networks import Network, drawn
from merlin.train.loading.normalise import Normaliser
from merlin.train.loading.scaling import IDENTITY
from merlin.train.models.base import Trainee
from merlin.train.models.outputs import SCALARS
from merlin.train.prepare import Prepared, build_trainee, prepare
from merlin.train.quantities import Quantities, Quantity
from merlin.train.run_directory import RunFacts

SCRIPT = "train_lbann.py"
MODELS = ("regressor", "icf_autoencoder", "icf_surrogate")  # each names the script's part that has its losses
_TRAIN = "train"  # the split whose samples the exporter deals to trainers


class Emitted(Struct, frozen=True):
    """The files that were written."""

    script: Path
    files: tuple[Path, ...]
    num_samples: int
    warnings: tuple[Diagnostic, ...]


def emit(
    config_path: Path,
    words: Sequence[str],
    out: Path,
    progress: OnProgress = lambda done, total: None,
    *,
    trust_code: bool = False,
) -> Emitted:
    """Check a configuration and write what LBANN needs to train it; an unfinished export in `out` goes on.

    Raises as `merlin.train.prepare.prepare`, and UsageError for what LBANN cannot do, every finding at once.
    """
    prepared = prepare(config_path, words, trust_code=trust_code)
    config, facts = prepared.config, prepared.facts
    refuse(config, prepared.normaliser, facts)
    trainee = build_trainee(config, facts.shapes)
    trainee.start(prepared.normaliser)
    networks = networks_of(config.model.name, trainee)
    text = _script(config, constants(prepared, trainee, networks))
    trainers = config.tournament.trainers
    fields = (*facts.scalars, *facts.images)
    options = ExportOptions(format="lbann", fields=fields, trainers=trainers if trainers > 1 else 0)
    exported = export(Path(config.data), out / "data", options, num_workers=None, progress=progress)
    written = [out / name for name in _write_schemas(prepared, out)]
    written += _write_weights(networks, out / "weights")
    write_text(out / SCRIPT, text)
    return Emitted(out / SCRIPT, tuple(written), int(exported["num_samples"]), prepared.warnings)


def refuse(config: TrainConfig, normaliser: Normaliser, facts: RunFacts) -> None:
    """Raise UsageError with everything in a configuration that LBANN does differently, or not at all."""
    training, tournament, schedule = config.training, config.tournament, config.schedule
    known = facts.quantities
    fields = [q.name for q in known.inputs if q.path.startswith("fields/")]
    scalings = {q.name: normaliser.scalings.get(q.path, IDENTITY) for q in _linear(known)}
    logs = [
        name for name, scaling in scalings.items() if any(offset is not None for offset in scaling.offset)
    ]
    decays = [config.optimizer.weight_decay, *(p.weight_decay or 0 for p in config.optimizer.phases.values())]
    warms_up = schedule.name == "constant" and bool(schedule.warmup_steps)
    several = tournament.trainers > 1
    without_counterpart = {
        "ema": training.ema is not None,
        "clip_norm": training.clip_norm is not None,
        "early_stopping": training.early_stopping is not None,
        "precision": training.precision != "fp32",
    }
    checks = (
        (config.model.name not in MODELS, "model.name",
         f"only {', '.join(MODELS)} can be written, not {config.model.name}"),
        (bool(fields), "fields.inputs",
         f"only inputs and parameters can be written, and no fields ({', '.join(fields)})"),
        *((True, "normalise",
           f"'{name}' is normalised by its logarithm; LBANN's reader has a scale and a bias") for name in logs),
        (config.optimizer.name == "adamw" and any(decays), "optimizer",
         "LBANN has no decoupled weight decay; use adam"),
        (schedule.name == "step" or warms_up, "schedule", "constant without warm-up, or cosine"),
        *((is_set, f"training.{key}", "has no counterpart here; leave it out")
          for key, is_set in without_counterpart.items()),
        (several and tournament.strategy not in ("random_pairwise", "none"), "tournament.strategy",
         f"random_pairwise or none, not {tournament.strategy}"),
        (several and tournament.merge, "tournament.merge", "LBANN keeps one of two models; write merge: false"),
        (several and tournament.lr_scale is not None, "tournament.lr_scale", "put it into optimizer.lr"),
        (several and config.mutates_width, "tournament.mutation.width",
         "all trainers have the same model; leave it out"),
        (several and config.splits.train != _TRAIN, "splits.train", f"several trainers share the split '{_TRAIN}'"),
    )  # fmt: skip
    listed = "\n".join(f"  {key}: {why}" for is_found, key, why in checks if is_found)
    if listed:
        raise UsageError(f"this run cannot be written for LBANN:\n{listed}")


def _linear(known: Quantities) -> tuple[Quantity, ...]:
    """The quantities that are normalised."""
    return (*known.inputs, *known.scalars, *known.images)


def networks_of(name: str, trainee: Trainee) -> list[Network]:
    """The stacks of a model, in the order in which the script lists them."""
    if name == "regressor":
        return _trained(trainee, dict.fromkeys(("layers", "image_body", "image_head"), "model"))
    coder: Any = trainee.coder
    names = ("image_encoder", "encoder", "decoder", "scalar_head", "image_head")
    parts = [(f"coder.{part}", getattr(coder, part)) for part in names if _has(coder, part)]
    if name == "icf_autoencoder":
        gains = {"coder.encoder": 1.0 / _input_scale(coder)}
        coders = [Network(path, m, "autoencoder", drawn(m), gains.get(path, 1.0)) for path, m in parts]
        copy = Network("frozen_discriminator", cast(nn.Module, trainee.discriminator), "")
        return [*coders, *_trained(trainee, {"discriminator": "discriminator"}), copy]
    phases = {
        **dict.fromkeys(("forward_generator", "inverse_generator"), "generators"),
        **dict.fromkeys(("forward_discriminator", "inverse_discriminator"), "discriminators"),
        **dict.fromkeys(("frozen_forward", "frozen_inverse"), ""),
    }
    return [*(Network(path, module, "", "file") for path, module in parts), *_trained(trainee, phases)]


def _trained(trainee: Trainee, phases: Mapping[str, str]) -> list[Network]:
    """The existing stacks among these names, each with the phase that trains it."""
    found = [(path, getattr(trainee, path), phase) for path, phase in phases.items() if _has(trainee, path)]
    return [Network(path, module, phase, drawn(module)) for path, module, phase in found]


def _input_scale(coder: Any) -> float:
    """The factor of an encoder's vector before its first layer."""
    return float(getattr(coder, "input_scale", 1.0))


def _has(module: nn.Module, name: str) -> bool:
    return getattr(module, name, None) is not None


def constants(prepared: Prepared, trainee: Trainee, networks: Sequence[Network]) -> dict[str, Any]:
    """The upper-case names of the script."""
    config, facts = prepared.config, prepared.facts
    num_steps, per_epoch = _lengths(prepared)
    images = list(facts.images.items())
    sizes = [(SCALARS, len(facts.scalars))] if facts.scalars else []
    shapes = [shape for _, shape in images]
    return {
        "BATCH_SIZE": config.training.batch_size,
        "NUM_STEPS": num_steps,
        "EPOCHS": -(-num_steps // per_epoch),
        "SEED": config.seed,
        "TRAINERS": config.tournament.trainers,
        "TRAIN": config.splits.train,
        "VALIDATION": config.splits.validation,
        "DATUM": "datum",
        "RESPONSE": "response",
        "INPUTS": list(facts.inputs),
        "OUTPUTS": sizes + [(name, prod(shape)) for name, shape in images],
        "IMAGE_SHAPE": [sum(shape[0] for shape in shapes), *shapes[0][1:]] if shapes else [],
        "OPTIMIZERS": {phase: _optimizer(config, phase) for phase in trainee.phases},
        "SCHEDULE": config.schedule.model_dump(mode="json"),
        "TOURNAMENT": _tournament(config, trainee, num_steps),
        **_options(config.model.name, trainee),
        "NETWORKS": {network.path: network.table() for network in networks},
    }


def _lengths(prepared: Prepared) -> tuple[int, int]:
    """Steps of the run, and of an epoch, of trainer 0."""
    config = prepared.config
    ens = open_shards(config.data)
    data = TrainingData(ens, ColumnSelection((), (), ()), prepared.normaliser, config)
    size = len(data.share(0, "train").select(ens.sample_id[ens.splits[config.splits.train]]))
    per_epoch = max(1, size // config.training.batch_size)
    return config.training.num_steps(per_epoch), per_epoch


def _optimizer(config: TrainConfig, phase: str) -> dict[str, Any]:
    special = config.optimizer.phases.get(phase)
    own = {} if special is None else special.model_dump(exclude_none=True)
    known = {"lr": config.optimizer.lr, "weight_decay": config.optimizer.weight_decay}
    if config.optimizer.name == "sgd":
        return {"name": "sgd", **known, "momentum": config.optimizer.momentum, **own}
    return {"name": "adam", **known, "betas": config.optimizer.betas, **own}


def _tournament(config: TrainConfig, trainee: Trainee, num_steps: int) -> dict[str, Any]:
    """The rounds of a tournament; empty for independent trainers."""
    if not config.is_tournament:
        return {}
    tournament, parts = config.tournament, trainee.parts()
    directions = trainee.directions()
    metrics = {m.name: m.direction or directions[m.name] for m in tournament.metrics}
    return {
        "interval": tournament.interval,
        "rounds": max(1, (num_steps - 1) // tournament.interval),
        "metrics": metrics or {"loss": directions["loss"]},
        "exchange": []
        if "all" in tournament.exchange
        else [prefix for part in tournament.exchange for prefix in parts[part]],
        "fraction": tournament.tournament_fraction,
    }


def _options(name: str, trainee: Any) -> dict[str, Any]:
    """The options that the losses of a model depend on."""
    weight = {"IMAGE_WEIGHT": trainee.image_weight}
    if name == "regressor":
        return {"BY_CONVOLUTIONS": trainee.image_body is not None, **weight}
    known = {
        "BY_CONVOLUTIONS": trainee.coder.by_convolutions,
        "INPUT_SCALE": _input_scale(trainee.coder),
        **weight,
        "ADVERSARIAL": trainee.adversarial,
    }
    if name == "icf_autoencoder":
        return {**known, "LATENT": trainee.latent, "JOINT": trainee.joint, "REFRESH_EVERY": 1}
    return {
        **known,
        "FIDELITY": trainee.fidelity,
        "CYCLE": trainee.cycle,
        "OUTPUT": trainee.output,
        "REFRESH_EVERY": trainee.refresh_every,
    }


def _write_schemas(prepared: Prepared, out: Path) -> list[str]:
    """Write the schemas with the run's own normalisation, and its columns in the order of its batches."""
    facts, normaliser = prepared.facts, prepared.normaliser
    view = View(open_shards(prepared.config.data), (*facts.scalars, *facts.images))
    by_path = {column.path: column for column in view.columns}
    known = {quantity.path: quantity for quantity in _linear(facts.quantities)}

    def linear(column: ExportColumn) -> list[tuple[float, float]]:
        quantity, scaling = known[column.path], normaliser.scalings.get(column.path, IDENTITY)
        pairs = [(s, 0.0 - c * s) for s, c in zip(scaling.scale, scaling.centre, strict=True)]
        return pairs * quantity.shape_chw[0] if quantity.shape and len(pairs) == 1 else pairs

    return write_schemas(out, view, [by_path[path] for path in known], linear)


def _write_weights(networks: Sequence[Network], directory: Path) -> Iterator[Path]:
    """Write the weights of the networks that were trained before."""
    for network in networks:
        if network.start == "file":
            for name, value in network.module.state_dict().items():
                path = directory / f"{network.path}.{name}.npy"
                with replacing(path) as temporary, temporary.open("wb") as file:
                    np.save(file, value.detach().cpu().numpy(), allow_pickle=False)
                yield path


def _script(config: TrainConfig, constants: Mapping[str, Any]) -> str:
    """The text of the script: `constants` become its upper-case names, and code follows that is the same for every run.

    The code is the file `train_lbann.py.in`, in parts that begin with a line "#: <name>".
    """
    text = (files(__package__) / "train_lbann.py.in").read_text(encoding="utf-8")
    parts = dict(part.split("\n", 1) for part in ("\n" + text).split("\n#: ")[1:])
    lines = [f"{key} = {pformat(value, width=100, sort_dicts=False)}\n" for key, value in constants.items()]
    trainers = config.tournament.trainers
    what = f"a tournament of {trainers} trainers" if config.is_tournament else f"trainers: {trainers}"
    title = f"{config.name}: {config.model.name}, {what}."
    head = parts["head"].format(title=title, name=SCRIPT) + "\n" + "".join(lines)
    return "\n".join((head, parts["layers"], parts[config.model.name], parts["run"]))
