"""The losses of a trainer's steps: their means, and the end of a run whose loss is no number any more."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from merlin.base.text import some_of
from merlin.errors import TrainingError
from merlin.train.parallel.mesh import Mesh

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig
    from merlin.train.loading.loader import ShardLoader


class LossRecord:
    """Losses since they were taken last, on the device; `bad_steps` counts the last steps without a finite one."""

    def __init__(self, config: TrainConfig, trainer: int, loader: ShardLoader, mesh: Mesh) -> None:
        training = config.training
        self.bad_steps = 0
        self._accumulate, self._trainer = training.accumulate, trainer
        self._loader, self._ranks = loader, mesh.data
        # a tournament replaces a model whose loss is no number, so there is a round before the end
        least = config.tournament.interval + 1 if config.is_tournament else 1
        self._limit = max(training.nonfinite_limit, least)
        self._losses: list[tuple[str, Mapping[str, Tensor]]] = []
        self._recent: deque[tuple[int, Tensor]] = deque(maxlen=training.nonfinite_limit + training.log_every)

    def remember_batch(self, step: int, index: Tensor | None) -> None:
        """Remember which samples a step is about to see, for the message if its loss is no number."""
        if index is not None:
            self._recent.append((step, index))

    def add(self, phase: str, losses: Sequence[Mapping[str, Tensor]]) -> None:
        """Add the losses of the parts of a batch."""
        self._losses += [(phase, part) for part in losses]

    def reset(self, bad_steps: int) -> None:
        """Forget all losses, after a state was loaded that had so many bad steps."""
        self._losses.clear()
        self.bad_steps = bad_steps

    def take(self, step: int) -> dict[str, float]:
        """Means over steps and ranks; "phase/name" where there are several phases. All ranks have to call it.

        Raises TrainingError if the loss has not been finite for too many steps in a row.
        """
        if not self._losses:
            return {}
        several = len({phase for phase, _ in self._losses}) > 1
        names = [f"{phase}/{name}" if several else name for phase, part in self._losses for name in part]
        values = torch.stack([value.float() for _, part in self._losses for value in part.values()])
        values = self._ranks.mean(values).double().cpu()
        self._losses.clear()
        columns: dict[str, list[float]] = {}
        for name, value in zip(names, values.tolist(), strict=True):
            columns.setdefault(name, []).append(value)
        self._check_finite(columns, step)
        return {name: sum(column) / len(column) for name, column in columns.items()}

    def _check_finite(self, columns: Mapping[str, Sequence[float]], step: int) -> None:
        losses = [column for name, column in columns.items() if name.rpartition("/")[2] == "loss"]
        parts = self._accumulate
        num = len(losses[0]) // parts
        for i in range(num):
            finite = all(math.isfinite(v) for column in losses for v in column[i * parts : (i + 1) * parts])
            self.bad_steps = 0 if finite else self.bad_steps + 1
            if self.bad_steps == self._limit:
                raise TrainingError(self._message(step - num + i + 1))

    def _message(self, step: int) -> str:
        first = step - self.bad_steps + 1
        number, index = next(((s, i) for s, i in self._recent if s >= first), (0, None))
        which = ""
        if index is not None:
            dataset = self._loader.dataset
            ids = dataset.ens.sample_id[dataset.rows[index.cpu().numpy()]].tolist()
            which = f"\n  samples of step {number}: {some_of(ids, 20)}"
        return (
            f"the loss of trainer {self._trainer} was not finite for {self.bad_steps} steps in a row, "
            f"from step {first} on; none of them changed the weights\n"
            f"  Lower optimizer.lr, set training.clip_norm, or look at the data.{which}"
        )
