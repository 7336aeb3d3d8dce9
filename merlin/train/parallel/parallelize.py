"""How the ranks of a trainer train one model: forward, backward, and gradients that are the same on all of them.

A form of parallelism is one subclass of `Parallel`, which is itself the form of a single process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn import Parameter
from torch.nn.parallel import DistributedDataParallel

from merlin.errors import TrainingError
from merlin.train.models.base import Batch, Trainee
from merlin.train.parallel.mesh import Mesh

if TYPE_CHECKING:
    from merlin.train.config import Training

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

Losses = dict[str, Tensor]


def parallelize(
    trainee: Trainee, mesh: Mesh, training: Training, device: torch.device, scaler: GradScaler | None = None
) -> Parallel:
    """A trainee on this process's device, with the weights of the first rank, ready to be trained by all ranks.

    Raises TrainingError if one of its phases has no parameters to train.
    """
    form = DataParallel if mesh.data.size > 1 else Parallel
    return form(trainee, mesh, training, device, scaler)


class _Phase(nn.Module):
    """One phase of a trainee as a module of its own, for DDP and torch.compile."""

    def __init__(self, trainee: Trainee, name: str) -> None:
        super().__init__()
        self.trainee = trainee
        self.name = name

    def forward(self, batch: Batch) -> Losses:
        return self.trainee(batch, self.name)  # type: ignore[no-any-return]


class Parallel:
    """A trainee that one process trains."""

    def __init__(
        self,
        trainee: Trainee,
        mesh: Mesh,
        training: Training,
        device: torch.device,
        scaler: GradScaler | None,
    ) -> None:
        """`scaler` scales the loss of fp16. Raises TrainingError if a phase has nothing to train."""
        self.trainee = trainee.to(device).train()
        self._mesh, self._device, self._scaler = mesh, device, scaler
        self._dtype = _DTYPES.get(training.precision)
        self.broadcast()
        self.parameters: dict[str, list[Parameter]] = {}  # by phase, those that its optimiser changes
        self._modules: dict[str, nn.Module] = {}
        for name in trainee.phases:
            self.parameters[name] = [p for p in trainee.parameters_of(name) if p.requires_grad]
            if not self.parameters[name]:
                raise TrainingError(f"the model's phase '{name}' has no parameters to train")
            module: Any = _Phase(trainee, name)
            module = torch.compile(module) if training.compile else module
            self._modules[name] = self._synchronised(module, self.parameters[name])

    def _synchronised(self, module: nn.Module, parameters: Sequence[Parameter]) -> nn.Module:
        """The module of a phase, whose gradients of these parameters are to be the same on all ranks."""
        return module

    def _without_synchronising(self, phase: str) -> AbstractContextManager[Any]:
        """A context in which gradients stay on their rank."""
        return contextlib.nullcontext()

    def broadcast(self) -> None:
        """Give all ranks the weights and buffers of the first one."""

    def sync_buffers(self) -> None:
        """Give all ranks the buffers of the first one, as those of batch normalisation."""

    def probe(self, loss: Tensor, parameters: Sequence[Parameter], norm: Tensor | None = None) -> Tensor:
        """A number that is the same on all ranks, and finite if the loss and the gradients of a step may be used.

        `norm` is that of the gradients, where it is known.
        """
        return loss if norm is None else loss + norm

    def backward(self, phase: str, parts: Sequence[Batch]) -> tuple[Tensor, list[Losses]]:
        """Compute the gradients of the mean loss over a batch's parts; returns it, and the losses of each."""
        losses = []
        for i, part in enumerate(parts):
            is_last = i == len(parts) - 1
            with contextlib.nullcontext() if is_last else self._without_synchronising(phase):
                losses.append(self._backward(phase, part, len(parts), is_first=i == 0))
        if len(losses) == 1:
            return losses[0]["loss"], losses
        return torch.stack([part["loss"] for part in losses]).mean(), losses

    def _backward(self, phase: str, batch: Batch, num_parts: int, *, is_first: bool) -> Losses:
        """Add the gradients of a part of a batch to those of the parts before it.

        Those of the step before are dropped here, after the forward pass: the new ones find their memory free, and in
        the processor's cache.
        """
        with self._autocast():
            losses: Losses = self._modules[phase](batch)
            loss = losses["loss"] if num_parts == 1 else losses["loss"] / num_parts
        if is_first:
            for parameter in self.parameters[phase]:  # as `zero_grad` does, which also asks a profiler
                parameter.grad = None
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        return {name: value.detach() for name, value in losses.items()}

    def metrics(self, batch: Batch) -> Mapping[str, Tensor]:
        """The metrics of this rank's samples, one value each."""
        with self._autocast():
            return self.trainee.metrics(batch)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self._device.type, self._dtype)


class DataParallel(Parallel):
    """A trainee of which every rank has a copy and a part of each batch (PyTorch's DistributedDataParallel)."""

    def _synchronised(self, module: nn.Module, parameters: Sequence[Parameter]) -> nn.Module:
        mine = {id(p) for p in parameters}
        ignored = [name for name, p in module.named_parameters() if id(p) not in mine]
        ignored += [name for name, _ in module.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ignored)
        return DistributedDataParallel(
            module,
            device_ids=[self._device.index] if self._device.type == "cuda" else None,
            process_group=self._mesh.data.group,
            broadcast_buffers=False,
            # on the CPU sums must not depend on when the run began: with it, buckets are never rearranged
            find_unused_parameters=self._device.type == "cpu",
        )

    def _without_synchronising(self, phase: str) -> AbstractContextManager[Any]:
        module = self._modules[phase]
        assert isinstance(module, DistributedDataParallel)
        return module.no_sync()

    def broadcast(self) -> None:
        with torch.no_grad():
            self._mesh.data.broadcast([*self.trainee.parameters(), *self.trainee.buffers()])

    def sync_buffers(self) -> None:
        self._mesh.data.broadcast(list(self.trainee.buffers()))

    def probe(self, loss: Tensor, parameters: Sequence[Parameter], norm: Tensor | None = None) -> Tensor:
        """The norm of the gradients, which are the same on all ranks; losses are not."""
        if norm is not None:
            return norm
        return nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
