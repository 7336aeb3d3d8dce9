"""The text of the script: constants of a run, then code that is the same for every run."""

from __future__ import annotations

from collections.abc import Mapping
from pprint import pformat
from typing import Any

_HEAD = '''"""{title}

Written by `merlin train --emit lbann`, for LBANN's Python front end. Weights are called as in the PyTorch model.

    python {name} --nodes 4 --procs-per-node 4 --procs-per-trainer 4
"""

import argparse
from pathlib import Path

import lbann
import lbann.contrib.launcher
import lbann.modules

HERE = Path(__file__).resolve().parent

'''

_LAYERS = '''
ACTIVATIONS = {"relu": lbann.Relu, "leaky_relu": lbann.LeakyRelu, "elu": lbann.Elu, "tanh": lbann.Tanh}
OPTIONS = {"leaky_relu": {"negative_slope": 0.01}, "elu": {"alpha": 1.0}}

known_weights = {}  # by name: applications of one network share them
weighted_layers = {}  # by network: the names of the layers of its first application that have weights
applications = {}  # by network: how many there are


def optimizer(phase):
    """Of the weights that a phase trains; those of no phase stay as they are."""
    if not phase:
        return lbann.NoOptimizer()
    known = OPTIMIZERS[phase]
    if known["name"] == "sgd":
        return lbann.SGD(learn_rate=known["lr"], momentum=known["momentum"], nesterov=False)
    beta1, beta2 = known["betas"]
    return lbann.Adam(learn_rate=known["lr"], beta1=beta1, beta2=beta2, eps=1e-8)


def make_weights(name, phase, first):
    """Weights by their name, made when they are first asked for."""
    if name not in known_weights:
        known_weights[name] = lbann.Weights(name=name, initializer=first, optimizer=optimizer(phase))
    return known_weights[name]


def first_values(network, name, key, fan_in):
    """How the weights of a dense layer or a convolution begin."""
    if network["start"] == "file":
        return lbann.NumpyInitializer(file=str(HERE / "weights" / f"{name}.npy"))
    dense = [key for key, kind, *_ in network["layers"] if kind == "dense"]
    if network["start"] == "he_normal" and key in dense[:-1]:
        if name.endswith(".bias"):
            return lbann.ConstantInitializer(value=0.0)
        gain = network["gain"] if key == dense[0] else 1.0
        return lbann.NormalInitializer(mean=0.0, standard_deviation=gain * (2.0 / fan_in) ** 0.5)
    bound = fan_in**-0.5
    return lbann.UniformInitializer(min=-bound, max=bound)


def affine_weights(network, path, key, fan_in):
    """The matrix or kernel, and the bias."""
    names = (f"{path}.weight", f"{path}.bias")
    return [make_weights(n, network["phase"], first_values(network, n, key, fan_in)) for n in names]


def batch_norm_weights(network, path):
    """Scale and bias, which are trained, and the running statistics, which are not."""
    found = []
    for part, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
        name = f"{path}.{part}"
        if network["start"] == "file":
            first = lbann.NumpyInitializer(file=str(HERE / "weights" / f"{name}.npy"))
        else:
            first = lbann.ConstantInitializer(value=value)
        found.append(make_weights(name, "" if part.startswith("running") else network["phase"], first))
    return found


def apply(name, x):
    """The layers of a network, one after the other, on a tensor."""
    network = NETWORKS[name]
    applications[name] = number = applications.get(name, 0) + 1
    for key, kind, *values in network["layers"]:
        path = ".".join(part for part in (name, key) if part)
        label = f"{path}_{number}"
        if kind == "dense":
            units, fan_in = values
            weights = affine_weights(network, path, key, fan_in)
            x = lbann.FullyConnected(x, num_neurons=units, has_bias=True, weights=weights, name=label)
        elif kind in ("conv", "deconv"):
            channels, size, stride, padding, fan_in = values
            weights = affine_weights(network, path, key, fan_in)
            module = lbann.modules.Convolution2dModule(
                channels, size, stride=stride, padding=padding, weights=weights, name=label,
                transpose=kind == "deconv",
            )
            x = module(x)
        elif kind == "batch_norm":
            _, decay, epsilon = values
            weights = batch_norm_weights(network, path)
            x = lbann.BatchNormalization(x, decay=decay, epsilon=epsilon, weights=weights, name=label)
        elif kind == "dropout":
            x = lbann.Dropout(x, keep_prob=values[0], name=label)
        elif kind == "reshape":
            x = lbann.Reshape(x, dims=values[0], name=label)
        elif kind == "flatten":
            x = lbann.Reshape(x, dims=[-1], name=label)
        elif kind == "silu":
            x = lbann.Multiply(x, lbann.Sigmoid(x, name=f"{label}_gate"), name=label)
        else:
            x = ACTIVATIONS[kind](x, name=label, **OPTIONS.get(kind, {}))
        if kind in ("dense", "conv", "deconv", "batch_norm") and number == 1:
            weighted_layers.setdefault(name, []).append(x.name)
    return x


def cut(x, sizes):
    """The parts of a vector."""
    if len(sizes) == 1:
        return [x]
    points = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
    slices = lbann.Slice(x, axis=0, slice_points=points)
    return [lbann.Identity(slices) for _ in sizes]


def joined(*parts):
    return parts[0] if len(parts) == 1 else lbann.Concatenation(*parts, axis=0)


def mean_of(layers):
    if len(layers) == 1:
        return layers[0]
    return lbann.WeightedSum(*layers, scaling_factors=[1.0 / len(layers)] * len(layers))


def errors_of(made, true):
    """The mean squared error of scalars, and that of images, every field with the same weight."""
    sizes = [size for _, size in OUTPUTS]
    pairs = zip(OUTPUTS, cut(made, sizes), cut(true, sizes))
    each = [(name, lbann.MeanSquaredError(one, other)) for (name, _), one, other in pairs]
    found = {"scalars": [e for name, e in each if name == "scalars"]}
    found["images"] = [e for name, e in each if name != "scalars"]
    return {group: mean_of(of) for group, of in found.items() if of}


def weighted(errors):
    """One error of both."""
    if list(errors) == ["scalars"]:
        return errors["scalars"]
    factors = [IMAGE_WEIGHT if group == "images" else 1.0 for group in errors]
    return lbann.WeightedSum(*errors.values(), scaling_factors=factors)


def judge(network, seen, real):
    """Binary cross-entropy of what a discriminator says, with what it ought to say."""
    target = lbann.Constant(value=float(real), num_neurons=[1])
    return lbann.SigmoidBinaryCrossEntropy(apply(network, seen), target)


def encode(outputs):
    """Scalars and images to a latent code."""
    if not BY_CONVOLUTIONS:
        return apply("coder.encoder", lbann.WeightedSum(outputs, scaling_factors=[INPUT_SCALE]))
    parts = dict(zip([name for name, _ in OUTPUTS], cut(outputs, [size for _, size in OUTPUTS])))
    images = joined(*(part for name, part in parts.items() if name != "scalars"))
    codes = apply("coder.image_encoder", lbann.Reshape(images, dims=IMAGE_SHAPE))
    return apply("coder.encoder", joined(*([parts["scalars"]] if "scalars" in parts else []), codes))


def decode(code):
    """A latent code to scalars and images."""
    made = apply("coder.decoder", code)
    if not BY_CONVOLUTIONS:
        return made
    images = lbann.Reshape(apply("coder.image_head", made), dims=[-1])
    return joined(*([apply("coder.scalar_head", made)] if "coder.scalar_head" in NETWORKS else []), images)

'''

_GRAPHS = {
    "regressor": '''
def graph(inputs, outputs):
    """The terms of the loss as (layer, weight), metrics by name, and copies as {frozen network: network}."""
    if BY_CONVOLUTIONS:
        images = lbann.Reshape(apply("image_head", apply("image_body", inputs)), dims=[-1])
        made = joined(*([apply("layers", inputs)] if "layers" in NETWORKS else []), images)
    else:
        made = apply("layers", inputs)
    errors = errors_of(made, outputs)
    loss = weighted(errors)
    metrics = {"loss": loss, **(errors if len(errors) > 1 else {})}
    if "scalars" in errors:
        sizes = [size for _, size in OUTPUTS]
        metrics["mae"] = lbann.MeanAbsoluteError(cut(made, sizes)[0], cut(outputs, sizes)[0])
    return [(loss, 1.0)], metrics, {}

''',
    "icf_autoencoder": '''
def graph(inputs, outputs):
    """The terms of the loss as (layer, weight), metrics by name, and copies as {frozen network: network}."""
    code = encode(outputs)
    errors = errors_of(decode(code), outputs)
    loss = weighted(errors)
    prior = lbann.Gaussian(mean=0.0, stdev=1.0, neuron_dims=[LATENT])

    def seen(latent):
        return joined(latent, outputs) if JOINT else latent

    terms = [
        (loss, 1.0),
        (judge("discriminator", seen(prior), True), 1.0),
        (judge("discriminator", seen(lbann.StopGradient(code)), False), 1.0),
        (judge("frozen_discriminator", seen(code), True), ADVERSARIAL),
    ]
    return terms, {"loss": loss, **errors}, {"frozen_discriminator": "discriminator"}

''',
    "icf_surrogate": '''
def graph(inputs, outputs):
    """The terms of the loss as (layer, weight), metrics by name, and copies as {frozen network: network}."""
    distance = lbann.MeanSquaredError if FIDELITY == "mse" else lbann.MeanAbsoluteError
    code = encode(outputs)
    made_code, made_inputs = apply("forward_generator", inputs), apply("inverse_generator", code)
    cycle = lbann.MeanAbsoluteError(apply("inverse_generator", made_code), inputs)
    errors = errors_of(decode(made_code), outputs)
    fake_code = joined(lbann.StopGradient(made_code), inputs)
    fake_inputs = joined(code, lbann.StopGradient(made_inputs))
    terms = [
        (distance(made_code, code), 1.0),
        (distance(made_inputs, inputs), 1.0),
        (cycle, CYCLE),
        (weighted(errors), OUTPUT),
        (judge("frozen_forward", joined(made_code, inputs), True), ADVERSARIAL),
        (judge("frozen_inverse", joined(code, made_inputs), True), ADVERSARIAL),
        (judge("forward_discriminator", joined(code, inputs), True), 1.0),
        (judge("forward_discriminator", fake_code, False), 1.0),
        (judge("inverse_discriminator", joined(code, inputs), True), 1.0),
        (judge("inverse_discriminator", fake_inputs, False), 1.0),
    ]
    metrics = {
        "loss": lbann.Sum(weighted(errors), lbann.MeanSquaredError(made_inputs, inputs)),
        **errors,
        "latent": lbann.MeanSquaredError(made_code, code),
        "inverse": lbann.MeanAbsoluteError(made_inputs, inputs),
        "cycle": cycle,
    }
    copies = {"frozen_forward": "forward_discriminator", "frozen_inverse": "inverse_discriminator"}
    return [(layer, weight) for layer, weight in terms if weight], metrics, copies

''',
}

_RUN = '''
def make_model():
    inputs = lbann.Input(data_field=DATUM, name="inputs")
    outputs = lbann.Input(data_field=RESPONSE, name="outputs")
    terms, metrics, copies = graph(inputs, outputs)
    objective = [lbann.LayerTerm(layer, scale=weight) for layer, weight in terms]
    for phase, known in OPTIMIZERS.items():
        mine = [w for name, w in known_weights.items() if is_trained(name, phase)]
        if known["weight_decay"]:
            objective.append(lbann.L2WeightRegularization(weights=mine, scale=known["weight_decay"]))
    callbacks = [lbann.CallbackPrint(), lbann.CallbackTimer()]
    for frozen, source in copies.items():
        callbacks.append(
            lbann.CallbackReplaceWeights(
                source_layers=" ".join(weighted_layers[source]),
                destination_layers=" ".join(weighted_layers[frozen]),
                batch_interval=REFRESH_EVERY,
            )
        )
    callbacks += schedules()
    return lbann.Model(
        EPOCHS,
        layers=lbann.traverse_layer_graph([inputs, outputs]),
        objective_function=lbann.ObjectiveFunction(objective),
        metrics=[lbann.Metric(layer, name=name) for name, layer in metrics.items()],
        callbacks=callbacks,
    )


def is_trained(name, phase):
    """Whether a phase trains the weights of this name."""
    owners = [n for n in NETWORKS if name.startswith(f"{n}.")]
    return NETWORKS[max(owners, key=len)]["phase"] == phase and "running_" not in name


def schedules():
    """The learning rate over the steps."""
    if SCHEDULE["name"] != "cosine":
        return []
    found = []
    for phase, known in OPTIMIZERS.items():
        found.append(
            lbann.CallbackCosineDecayLearningRate(
                lr_max=known["lr"],
                lr_min=known["lr"] * SCHEDULE["final"],
                decay_steps=NUM_STEPS - SCHEDULE["warmup_steps"],
                initial_warmup_learning_rate=known["lr"] / (SCHEDULE["warmup_steps"] + 1),
                warmup_steps=SCHEDULE["warmup_steps"],
                weights=" ".join(name for name in known_weights if is_trained(name, phase)),
            )
        )
    return found


def make_trainer():
    """One trainer, or one of those that meet in tournaments; each runs this script's model."""
    if not TOURNAMENT:
        algorithm = lbann.BatchedIterativeOptimizer("local", num_iterations=NUM_STEPS)
    else:
        exchange = lbann.RandomPairwiseExchange
        strategy = exchange.MetricStrategy
        prefixes = tuple(TOURNAMENT["exchange"])
        names = [name for name in known_weights if name.startswith(prefixes)] if prefixes else []
        algorithm = lbann.LTFB(
            "ltfb",
            local_algo=lbann.BatchedIterativeOptimizer("local", num_iterations=TOURNAMENT["interval"]),
            metalearning=exchange(
                metric_strategies={
                    name: strategy.LOWER_IS_BETTER if direction == "min" else strategy.HIGHER_IS_BETTER
                    for name, direction in TOURNAMENT["metrics"].items()
                },
                exchange_strategy=exchange.ExchangeStrategy(
                    strategy="checkpoint_binary", **({"weights_names": names} if names else {})
                ),
            ),
            metalearning_steps=TOURNAMENT["rounds"],
        )
    return lbann.Trainer(mini_batch_size=BATCH_SIZE, random_seed=SEED, training_algo=algorithm)


def make_reader():
    """The exported data set; each trainer has a list of samples of its own."""
    reader = lbann.reader_pb2.DataReader()
    for role, split in (("train", TRAIN), ("validate", VALIDATION)):
        one = reader.reader.add()
        one.name = "hdf5_data"
        one.role = role
        one.shuffle = role == "train"
        one.data_schema_filename = str(HERE / "data_schema.yaml")
        one.experiment_schema_filename = str(HERE / "experiment_schema.yaml")
        one.sample_list = str(HERE / "data" / f"{split}_inclusion.sample_list")
        one.sample_list_per_trainer = role == "train" and TRAINERS > 1
        one.fraction_of_data_to_use = 1.0
        one.tournament_fraction = TOURNAMENT["fraction"] if role == "train" and TOURNAMENT else 0.0
    return reader


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--procs-per-node", type=int, default=TRAINERS)
    parser.add_argument("--procs-per-trainer", type=int, default=1)
    parser.add_argument("--job-name", default="merlin")
    parser.add_argument("--setup-only", action="store_true", help="write the batch script and do not run it")
    args = parser.parse_args()
    model = make_model()
    return lbann.contrib.launcher.run(
        make_trainer(),
        model,
        make_reader(),
        optimizer(next(iter(OPTIMIZERS))),
        job_name=args.job_name,
        nodes=args.nodes,
        procs_per_node=args.procs_per_node,
        setup_only=args.setup_only,
        lbann_args=[
            "--use_data_store",
            "--preload_data_store",
            f"--procs_per_trainer={args.procs_per_trainer}",
        ],
    )


if __name__ == "__main__":
    raise SystemExit(main())
'''


def script_text(title: str, name: str, model: str, constants: Mapping[str, Any]) -> str:
    """The whole script; `constants` become its upper-case names."""
    lines = [f"{key} = {pformat(value, width=100, sort_dicts=False)}\n" for key, value in constants.items()]
    return _HEAD.format(title=title, name=name) + "".join(lines) + "\n" + _LAYERS + _GRAPHS[model] + _RUN


MODELS = tuple(_GRAPHS)
