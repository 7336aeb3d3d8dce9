"""One phase of a step: the losses, and the optimiser of the parameters that it changes."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from merlin.errors import TrainingError
from merlin.train.distributed import Ranks
from merlin.train.models.base import Trainee
from merlin.train.optim import make_optimizer

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig

Batch = dict[str, Tensor]


class _Phase(nn.Module):
    """One phase of a trainee as a module of its own, for DDP and torch.compile."""

    def __init__(self, trainee: Trainee, name: str) -> None:
        super().__init__()
        self.trainee = trainee
        self.name = name

    def forward(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return self.trainee(batch, self.name)  # type: ignore[no-any-return]


class Phase:
    """What a step does for one phase: the losses, and the update of its parameters."""

    def __init__(
        self, trainee: Trainee, name: str, config: TrainConfig, ranks: Ranks, device: torch.device
    ) -> None:
        self.name = name
        self.parameters = [p for p in trainee.parameters_of(name) if p.requires_grad]
        if not self.parameters:
            raise TrainingError(f"the model's phase '{name}' has no parameters to train")
        self.optimizer = make_optimizer(self.parameters, config.optimizer, name)
        mine = {id(p) for p in self.parameters}
        self._others = [p for p in trainee.parameters() if id(p) not in mine]
        module: nn.Module = _Phase(trainee, name)
        if config.training.compile:
            module = torch.compile(module)  # type: ignore[assignment]
        if ranks.size > 1:
            module = _data_parallel(module, mine, ranks, device)
        self._module = module

    def select(self) -> None:
        """Let gradients be computed for the parameters of this phase alone."""
        for parameter in self._others:
            parameter.requires_grad_(False)
        for parameter in self.parameters:
            parameter.requires_grad_(True)

    def losses(self, batch: Batch) -> dict[str, Tensor]:
        return self._module(batch)  # type: ignore[no-any-return]

    def no_sync(self) -> contextlib.AbstractContextManager[Any]:
        """Keep gradients on the rank, for all but the last part of a batch."""
        if isinstance(self._module, DistributedDataParallel):
            return self._module.no_sync()
        return contextlib.nullcontext()


def _data_parallel(module: nn.Module, mine: set[int], ranks: Ranks, device: torch.device) -> nn.Module:
    """DDP over the parameters of one phase; buffers are made equal where it matters, in `Trainer.sync_buffers`."""
    ignored = [name for name, p in module.named_parameters() if id(p) not in mine]
    ignored += [name for name, _ in module.named_buffers()]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
    return DistributedDataParallel(
        module,
        device_ids=[device.index] if device.type == "cuda" else None,
        process_group=ranks.group,
        broadcast_buffers=False,
        # on the CPU sums must not depend on when the run began: with it, buckets are never rearranged
        find_unused_parameters=device.type == "cpu",
    )
