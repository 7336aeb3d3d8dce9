"""Optimisers of phases, learning rates as functions of the step, and the moving average of weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

if TYPE_CHECKING:
    from merlin.train.config import Optimizer as OptimizerConfig
    from merlin.train.config import Schedule

BASE_LR = "initial_lr"  # of a parameter group: the learning rate that the schedule's factor multiplies


def make_optimizer(
    parameters: Iterable[Parameter], config: OptimizerConfig, phase: str, lr_scale: float = 1.0
) -> Optimizer:
    """The optimiser of a phase. All are fused: one kernel for all parameters, which can skip a step by itself."""
    special = config.phases.get(phase)
    own = {} if special is None else special.model_dump(exclude_none=True)
    lr = own.get("lr", config.lr) * lr_scale
    decay = own.get("weight_decay", config.weight_decay)
    groups = [{"params": list(parameters), BASE_LR: lr}]
    if config.name == "sgd":
        momentum = own.get("momentum", config.momentum)
        sgd = torch.optim.SGD(groups, lr=lr, momentum=momentum, weight_decay=decay, fused=True)
        _begin_momentum(sgd)
        sgd.register_load_state_dict_post_hook(_begin_momentum)  # a state before the first step may have none
        return sgd
    kind = torch.optim.AdamW if config.name == "adamw" else torch.optim.Adam
    betas = own.get("betas", config.betas)
    return kind(groups, lr=lr, betas=betas, weight_decay=decay, fused=True)


def _begin_momentum(sgd: Optimizer) -> None:
    """Let the momentum that is missing be zero: a first step that the kernel skips would leave it uninitialised."""
    for group in sgd.param_groups:
        for parameter in group["params"] if group["momentum"] else ():
            if sgd.state[parameter].get("momentum_buffer") is None:
                sgd.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


def lr_factor(schedule: Schedule, step: int, num_steps: int) -> float:
    """What multiplies the learning rate in step `step` (from 0) of `num_steps`."""
    warmup = schedule.warmup_steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if schedule.name == "cosine":
        progress = min(1.0, (step - warmup) / max(1, num_steps - warmup))
        return schedule.final + (1.0 - schedule.final) * 0.5 * (1.0 + math.cos(math.pi * progress))
    if schedule.name == "step":
        return float(schedule.gamma ** ((step - warmup) // schedule.every))
    return 1.0


def set_lr(optimizer: Optimizer, factor: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = group[BASE_LR] * factor


class MovingAverage:
    """Exponential moving average of parameters: a <- decay * a + (1 - decay) * p."""

    def __init__(self, parameters: Sequence[tuple[str, Parameter]], decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in parameters]
        self._live = [parameter for _, parameter in parameters]
        self._average = [parameter.detach().clone() for parameter in self._live]

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._average, list(self._live), 1.0 - self.decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """A context in which the parameters have the values of the average."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        kept = [parameter.clone() for parameter in self._live]
        torch._foreach_copy_(list(self._live), self._average)
        torch._foreach_copy_(self._average, kept)

    def state_dict(self) -> dict[str, Tensor]:
        """The averages by the names of the parameters."""
        return dict(zip(self.names, self._average, strict=True))

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Copy the averages that the state has; others stay."""
        for name, average in self.state_dict().items():
            if name in state:
                average.copy_(state[name])
