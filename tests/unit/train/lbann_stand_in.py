"""A small `lbann`: it knows the layers that our scripts use, refuses arguments that LBANN does not have, and computes.

What a script builds is recorded; `Graph` computes its layers with PyTorch, so that the model that was written can be
compared with the one that it was written of.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace

import torch
from torch.nn import functional as F


class Recorded:
    """Something with keyword arguments; those that are not `allowed` are refused, as LBANN does."""

    allowed: tuple[str, ...] = ()

    def __init__(self, **options):
        unknown = set(options) - set(self.allowed)
        assert not unknown, f"lbann.{type(self).__name__} has no {unknown}"
        self.options = options


def recorded(name: str, *allowed: str) -> type:
    return type(name, (Recorded,), {"allowed": allowed})


class Weights:
    def __init__(self, initializer=None, optimizer=None, name=None):
        self.initializer, self.optimizer, self.name = initializer, optimizer, name


class Layer:
    allowed: tuple[str, ...] = ()
    count = 0

    def __init__(self, *parents, name=None, weights=(), **options):
        assert all(isinstance(parent, Layer) for parent in parents), parents
        unknown = set(options) - set(self.allowed)
        assert not unknown, f"lbann.{type(self).__name__} has no {unknown}"
        Layer.count += 1
        self.name = name or f"layer{Layer.count}"
        self.parents, self.children = list(parents), []
        self.weights, self.options = list(weights), options
        for parent in parents:
            parent.children.append(self)


def layer(name: str, compute, *allowed: str) -> type:
    return type(name, (Layer,), {"allowed": allowed, "compute": staticmethod(compute)})


def _mean(values):
    return values.flatten(1).mean(1, keepdim=True)


def _convolve(graph, it, x, *, transpose):
    weight, bias = (graph.weights[w.name] for w in it.weights)
    run = F.conv_transpose2d if transpose else F.conv2d
    return run(x, weight, bias, it.options["stride"], it.options["padding"])


def _piece(graph, it, x):
    """A child of a slice gets the piece of its number."""
    parent = it.parents[0]
    if not isinstance(parent, LAYERS["Slice"]):
        return x
    number = parent.children.index(it)
    low, high = parent.options["slice_points"][number : number + 2]
    return x[:, low:high]


def _dense(graph, it, x):
    weight, bias = (graph.weights[w.name] for w in it.weights)
    assert weight.shape[0] == it.options["num_neurons"] and it.options["has_bias"]
    return F.linear(x.flatten(1), weight, bias)


def _batch_norm(graph, it, x):
    weight, bias, mean, variance = (graph.weights[w.name] for w in it.weights)
    return F.batch_norm(x, mean, variance, weight, bias, False, 0.0, it.options["epsilon"])


def _bce(graph, it, x, target):
    return F.binary_cross_entropy_with_logits(x, target, reduction="none")


LAYERS = {
    "Input": layer("Input", lambda g, it: g.batch[it.options["data_field"]], "data_field"),
    "FullyConnected": layer("FullyConnected", _dense, "num_neurons", "has_bias"),
    "Convolution": layer(
        "Convolution",
        lambda g, it, x: _convolve(g, it, x, transpose=False),
        "out",
        "size",
        "stride",
        "padding",
    ),
    "Deconvolution": layer(
        "Deconvolution",
        lambda g, it, x: _convolve(g, it, x, transpose=True),
        "out",
        "size",
        "stride",
        "padding",
    ),
    "BatchNormalization": layer("BatchNormalization", _batch_norm, "decay", "epsilon"),
    "Dropout": layer("Dropout", lambda g, it, x: x, "keep_prob"),
    "Relu": layer("Relu", lambda g, it, x: x.relu()),
    "LeakyRelu": layer(
        "LeakyRelu", lambda g, it, x: F.leaky_relu(x, it.options["negative_slope"]), "negative_slope"
    ),
    "Elu": layer("Elu", lambda g, it, x: F.elu(x, it.options["alpha"]), "alpha"),
    "Tanh": layer("Tanh", lambda g, it, x: x.tanh()),
    "Sigmoid": layer("Sigmoid", lambda g, it, x: x.sigmoid()),
    "Multiply": layer("Multiply", lambda g, it, x, y: x * y),
    "Sum": layer("Sum", lambda g, it, *x: sum(x)),
    "WeightedSum": layer(
        "WeightedSum",
        lambda g, it, *x: sum(f * v for f, v in zip(it.options["scaling_factors"], x, strict=True)),
        "scaling_factors",
    ),
    "Slice": layer("Slice", lambda g, it, x: x, "axis", "slice_points"),
    "Identity": layer("Identity", _piece),
    "Concatenation": layer("Concatenation", lambda g, it, *x: torch.cat(x, it.options["axis"] + 1), "axis"),
    "Reshape": layer("Reshape", lambda g, it, x: x.reshape(len(x), *it.options["dims"]), "dims"),
    "StopGradient": layer("StopGradient", lambda g, it, x: x.detach()),
    "Constant": layer(
        "Constant",
        lambda g, it: torch.full((g.num, *it.options["num_neurons"]), it.options["value"]),
        "value",
        "num_neurons",
    ),
    "Gaussian": layer(
        "Gaussian",
        lambda g, it: torch.randn(g.num, *it.options["neuron_dims"]),
        "mean",
        "stdev",
        "neuron_dims",
    ),
    "MeanSquaredError": layer("MeanSquaredError", lambda g, it, x, y: _mean((x - y).square())),
    "MeanAbsoluteError": layer("MeanAbsoluteError", lambda g, it, x, y: _mean((x - y).abs())),
    "SigmoidBinaryCrossEntropy": layer("SigmoidBinaryCrossEntropy", _bce),
}


def convolution_module(channels, size, stride=1, padding=0, weights=(), name=None, transpose=False):
    kind = LAYERS["Deconvolution" if transpose else "Convolution"]
    return lambda x: kind(
        x, name=name, weights=weights, out=channels, size=size, stride=stride, padding=padding
    )


class Graph:
    """Values of layers for a batch {"datum": …, "response": …} and weights by name."""

    def __init__(self, batch, weights):
        self.batch, self.weights = batch, weights
        self.num = len(next(iter(batch.values())))
        self._known = {}

    def __call__(self, it):
        if it not in self._known:
            self._known[it] = type(it).compute(self, it, *(self(parent) for parent in it.parents))
        return self._known[it]

    def objective(self, model):
        """The sum of all terms but regularisation, a mean over the batch."""
        terms = [t for t in model.objective_function.terms if isinstance(t, LayerTerm)]
        return sum(term.scale * self(term.layer).mean() for term in terms)


class LayerTerm:
    def __init__(self, layer, scale=1.0):
        self.layer, self.scale = layer, scale


class Model:
    def __init__(self, epochs, layers=(), objective_function=None, metrics=(), callbacks=()):
        self.epochs, self.layers = epochs, list(layers)
        self.objective_function, self.metrics, self.callbacks = (
            objective_function,
            list(metrics),
            list(callbacks),
        )


class ObjectiveFunction:
    def __init__(self, terms=()):
        self.terms = list(terms)


class L2WeightRegularization:
    def __init__(self, weights=(), scale=1.0):
        self.weights, self.scale = list(weights), scale


class Metric:
    def __init__(self, layer, name=None, unit=""):
        self.layer, self.name = layer, name


class Trainer:
    def __init__(self, mini_batch_size, name=None, random_seed=None, training_algo=None, callbacks=()):
        self.mini_batch_size, self.random_seed, self.training_algo = (
            mini_batch_size,
            random_seed,
            training_algo,
        )


class BatchedIterativeOptimizer:
    def __init__(self, name, num_iterations=0, epoch_count=0, max_seconds=0.0):
        self.num_iterations, self.epoch_count = num_iterations, epoch_count


class LTFB:
    def __init__(self, name, local_algo, metalearning, metalearning_steps=1):
        self.local_algo, self.metalearning, self.metalearning_steps = (
            local_algo,
            metalearning,
            metalearning_steps,
        )


class RandomPairwiseExchange:
    class MetricStrategy:
        LOWER_IS_BETTER, HIGHER_IS_BETTER = 0, 1

    class ExchangeStrategy:
        def __init__(self, strategy="checkpoint_binary", weights_names=(), exchange_hyperparameters=False):
            self.strategy, self.weights_names = strategy, list(weights_names)

    def __init__(self, metric_strategies, exchange_strategy=None, mutation_strategy=None):
        self.metric_strategies, self.exchange_strategy = metric_strategies, exchange_strategy


class DataReader:
    def __init__(self):
        self.readers = []
        self.reader = SimpleNamespace(add=self._add)

    def _add(self):
        self.readers.append(SimpleNamespace())
        return self.readers[-1]


def traverse_layer_graph(layers):
    found, waiting = [], list(layers)
    while waiting:
        it = waiting.pop()
        if it not in found:
            found.append(it)
            waiting += [*it.parents, *it.children]
    return found


def make_modules() -> dict[str, ModuleType]:
    """`lbann` and the modules below it, and `lbann.ran`: what `launcher.run` was called with."""
    names = ("lbann", "lbann.contrib", "lbann.contrib.launcher", "lbann.modules")
    made = {name: ModuleType(name) for name in names}
    top = made["lbann"]
    top.__dict__.update(LAYERS)
    top.__dict__.update(
        NoOptimizer=recorded("NoOptimizer"),
        Adam=recorded("Adam", "learn_rate", "beta1", "beta2", "eps"),
        SGD=recorded("SGD", "learn_rate", "momentum", "nesterov"),
        UniformInitializer=recorded("UniformInitializer", "min", "max"),
        ConstantInitializer=recorded("ConstantInitializer", "value"),
        NormalInitializer=recorded("NormalInitializer", "mean", "standard_deviation"),
        NumpyInitializer=recorded("NumpyInitializer", "file"),
        CallbackPrint=recorded("CallbackPrint"),
        CallbackTimer=recorded("CallbackTimer"),
        CallbackReplaceWeights=recorded(
            "CallbackReplaceWeights", "source_layers", "destination_layers", "batch_interval"
        ),
        CallbackCosineDecayLearningRate=recorded(
            "CallbackCosineDecayLearningRate",
            "lr_max", "lr_min", "decay_steps", "initial_warmup_learning_rate", "warmup_steps", "weights",
        ),
        reader_pb2=SimpleNamespace(DataReader=DataReader),
    )  # fmt: skip
    for kind in (
        Weights, Layer, LayerTerm, Model, ObjectiveFunction, L2WeightRegularization, Metric, Trainer,
        BatchedIterativeOptimizer, LTFB, RandomPairwiseExchange, traverse_layer_graph,
    ):  # fmt: skip
        setattr(top, kind.__name__, kind)
    top.contrib, top.modules = made["lbann.contrib"], made["lbann.modules"]
    top.contrib.launcher = made["lbann.contrib.launcher"]
    top.modules.Convolution2dModule = convolution_module
    top.ran = []

    def run(trainer, model, data_reader, optimizer, **options):
        top.ran.append(SimpleNamespace(trainer=trainer, model=model, reader=data_reader, options=options))
        return 0

    top.contrib.launcher.run = run
    return made


@contextmanager
def installed():
    """`import lbann` finds the stand-in inside."""
    made = make_modules()
    before = {name: sys.modules.get(name) for name in made}
    sys.modules.update(made)
    try:
        yield made["lbann"]
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
