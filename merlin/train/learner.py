"""A model with everything that belongs to its weights: an optimiser for each phase, and the weights' moving average.

Trainers exchange parts of it, and it is replaced when the model of a trainer gets another width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.optim import Optimizer

from merlin.errors import CheckpointError, TrainingError
from merlin.train.flat import joined, overwrite, tensors_of
from merlin.train.models.base import Batch, Trainee
from merlin.train.optim import BASE_LR, MovingAverage, make_optimizer
from merlin.train.parallel.mesh import Mesh
from merlin.train.parallel.parallelize import parallelize
from merlin.train.state_file import State
from merlin.train.widths import fitted, fitted_moment, transposed

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig
    from merlin.train.loading.normalise import Normaliser

_HYPER = ("lr", "betas", "weight_decay", "momentum", "eps", BASE_LR)


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value


class Phase:
    """What a step changes in one phase: some parameters, by an optimiser of their own."""

    def __init__(
        self, name: str, parameters: Sequence[Parameter], others: Sequence[Parameter], optimizer: Optimizer
    ):
        self.name, self.parameters, self.optimizer = name, parameters, optimizer
        self._others = others

    def select(self) -> None:
        """Compute gradients for the parameters of this phase alone."""
        for parameter in self._others:
            parameter.requires_grad_(False)
        for parameter in self.parameters:
            parameter.requires_grad_(True)


class Learner:
    """`capacity` is the factor of the model's widths, None for a model that keeps them."""

    def __init__(
        self,
        trainee: Trainee,
        config: TrainConfig,
        mesh: Mesh,
        device: torch.device,
        *,
        scaler: GradScaler | None = None,
        capacity: float | None = None,
    ) -> None:
        """All ranks get the weights of the first one. Raises TrainingError if a phase has nothing to train."""
        self.capacity = capacity
        self.trainee = trainee
        self.parallel = parallelize(trainee, mesh, config.training, device, scaler)
        self._names = {id(p): name for name, p in trainee.named_parameters()}
        # kept, since finding them takes as long as copying a small model
        self._keys = frozenset(trainee.state_dict())
        self.phases = [self._phase(name, config) for name in trainee.phases]
        self._decay = config.training.ema
        self.average = self._new_average()
        self._transposed = transposed(trainee)
        self._found: tuple[AbstractSet[str], list[Tensor]] | None = None  # values that trainers average
        self.phases[0].select()

    def _phase(self, name: str, config: TrainConfig) -> Phase:
        mine = self.parallel.parameters[name]
        ids = {id(p) for p in mine}
        others = [p for p in self.trainee.parameters() if id(p) not in ids]
        is_exchanged = {self._names[id(p)] for p in mine} <= self.keys_of(config.tournament.exchange)
        scale = config.tournament.lr_scale if is_exchanged else None
        return Phase(name, mine, others, make_optimizer(mine, config.optimizer, name, scale or 1.0))

    def start(self, normaliser: Normaliser, samples: Callable[[int], Batch]) -> None:
        """Let the model take what it needs from elsewhere; see `Trainee.start` and `Trainee.fit`."""
        self.trainee.start(normaliser)
        if self.trainee.num_fitted:
            self.trainee.fit(samples(self.trainee.num_fitted))
        self._keys, self._found = frozenset(self.trainee.state_dict()), None
        self.parallel.broadcast()
        self.average = self._new_average()

    def _new_average(self) -> MovingAverage | None:
        named = [(n, p) for n, p in self.trainee.named_parameters() if p.is_floating_point()]
        return None if self._decay is None else MovingAverage(named, self._decay)

    def state_dict(self) -> State:
        """The learner's part of a checkpoint, which shares the memory of the weights."""
        return {
            "capacity": self.capacity,
            "model": self.trainee.state_dict(),
            "optimizers": {phase.name: phase.optimizer.state_dict() for phase in self.phases},
            "average": None if self.average is None else self.average.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Take over what `state_dict` gave. Raises CheckpointError if it is of another model."""
        self._found = None
        try:
            self.trainee.load_state_dict(state["model"])
            for phase in self.phases:
                phase.optimizer.load_state_dict(state["optimizers"][phase.name])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error
        if self.average is not None:
            self.average.load_state_dict(state["average"] or state["model"])

    def keys_of(self, parts: Sequence[str]) -> AbstractSet[str]:
        """The keys of named parts of the model; "all" is every part."""
        if "all" in parts:
            return self._keys
        prefixes = tuple(prefix for part in parts for prefix in self.trainee.parts()[part])
        return {key for key in self._keys if key.startswith(prefixes)}

    def export(self, keys: AbstractSet[str], of: Callable[[Any], Any] = _copied) -> State:
        """Weights, their average, and the optimisers' complete state, as copies on the CPU, or as `of` makes them.

        {"capacity": …, "weights": {name: …}, "average": {…},
        "optimizers": {phase: {"hyper": {…}, "state": {name: {…}}}}}
        """
        average = {} if self.average is None else self.average.state_dict()
        return {
            "capacity": self.capacity,
            "weights": {k: of(v) for k, v in self.trainee.state_dict().items() if k in keys},
            "average": {k: of(v) for k, v in average.items() if k in keys},
            "optimizers": {
                phase.name: self._export_optimizer(phase, keys, of)
                for phase in self.phases
                if any(self._names[id(p)] in keys for p in phase.parameters)
            },
        }

    def _export_optimizer(self, phase: Phase, keys: AbstractSet[str], of: Callable[[Any], Any]) -> State:
        group, moments = phase.optimizer.param_groups[0], phase.optimizer.state
        mine = [p for p in phase.parameters if self._names[id(p)] in keys and p in moments]
        return {
            "hyper": {name: group[name] for name in _HYPER if name in group},
            "state": {self._names[id(p)]: {k: of(v) for k, v in moments[p].items()} for p in mine},
        }

    def values(self, keys: AbstractSet[str]) -> Tensor:
        """The values that trainers average, as a copy on the CPU (n,)."""
        return joined(self._averaged(keys)[0]).cpu()

    def take_values(self, values: Tensor, keys: AbstractSet[str]) -> None:
        """Overwrite the values that trainers average. Raises TrainingError if these are of another model."""
        tensors, with_moments = self._averaged(keys)
        overwrite(tensors, values.to(tensors[0].device), has_moments=with_moments)

    def _averaged(self, keys: AbstractSet[str]) -> tuple[list[Tensor], bool]:
        """The tensors that trainers average, in the model's memory, and whether moments are among them.

        Kept while the tensors stay the same ones, since finding them takes longer than averaging a small model.
        """
        if self._found is not None and self._found[0] == keys:
            return self._found[1], True
        state = self.export(keys, lambda value: value.detach() if isinstance(value, Tensor) else value)
        tensors, moments = tensors_of(state), [of["state"] for of in state["optimizers"].values()]
        mine = {self._names[id(p)] for phase in self.phases for p in phase.parameters} & keys
        if sum(map(len, moments)) == len(mine):  # otherwise some are still to come
            self._found = keys, tensors
        return tensors, any(moments)

    @torch.no_grad()
    def take(self, state: State, keys: AbstractSet[str]) -> None:
        """Take over what `export` gave under these keys; everything else stays.

        Of a model with another width, as much as fits is taken over. Raises TrainingError if `state` is of
        another model.
        """
        self._found = None
        mine = self.trainee.state_dict()
        for key, value in self._fitted(state["weights"], mine, keys).items():
            mine[key].copy_(value)
        if self.average is not None:
            received = state["average"] or state["weights"]
            self.average.load_state_dict(self._fitted(received, self.average.state_dict(), keys))
        for phase in self.phases:
            if phase.name in state["optimizers"]:
                self._take_optimizer(phase, state["optimizers"][phase.name], keys)

    def _fitted(
        self, received: Mapping[str, Tensor], mine: Mapping[str, Tensor], keys: AbstractSet[str]
    ) -> dict[str, Tensor]:
        found = {}
        for key, value in received.items():
            if key not in mine or key not in keys:
                continue
            if value.shape != mine[key].shape:
                if self.capacity is None:
                    raise TrainingError(f"the model that was received has another '{key}'")
                try:
                    value = fitted(value, mine[key], key in self._transposed)
                except ValueError as error:
                    raise TrainingError(
                        f"the model that was received has another '{key}': {error}"
                    ) from error
            found[key] = value
        return found

    def _take_optimizer(self, phase: Phase, received: State, keys: AbstractSet[str]) -> None:
        group = phase.optimizer.param_groups[0]
        group.update({name: received["hyper"][name] for name in _HYPER if name in received["hyper"]})
        for parameter in phase.parameters:
            name = self._names[id(parameter)]
            if name in keys:
                phase.optimizer.state[parameter] = {
                    k: fitted_moment(k, v, parameter) if isinstance(v, Tensor) else v
                    for k, v in received["state"].get(name, {}).items()
                }


def merged(own: State, received: State, keys: AbstractSet[str]) -> State:
    """The state of a complete model: under these keys as received from another model, else its own."""
    optimizers = {
        phase: {
            "hyper": mine["hyper"] | received["optimizers"].get(phase, mine)["hyper"],
            "state": {
                **{name: of for name, of in mine["state"].items() if name not in keys},
                **received["optimizers"].get(phase, {"state": {}})["state"],
            },
        }
        for phase, mine in own["optimizers"].items()
    }
    theirs = received["average"] or received["weights"]
    return {
        "weights": own["weights"] | {k: v for k, v in received["weights"].items() if k in keys},
        "average": own["average"] | {k: theirs[k] for k in own["average"].keys() & theirs.keys() & keys},
        "optimizers": optimizers,
    }
