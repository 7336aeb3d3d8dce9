"""A trainer: a model, an optimiser for each of its phases, its data, and everything else that a step depends on.

The same code for one process and for several ranks that share each batch (`parallel/` knows which). Nothing in a step
waits for a GPU: losses stay on the device until `take_losses` asks for them, and an update whose loss is not finite is
left out by the optimiser's own kernel.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from merlin.base.records import FileFormat
from merlin.errors import CheckpointError, TrainingError
from merlin.train.learner import Learner, Phase, merged
from merlin.train.loading.order import derive_seed
from merlin.train.losses import LossRecord
from merlin.train.models.base import Shapes, Trainee
from merlin.train.optim import lr_factor, set_lr
from merlin.train.parallel.mesh import Mesh
from merlin.train.random_state import random_state, seed_all, seeded, set_random_state
from merlin.train.state_file import State
from merlin.train.widths import Widths

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig
    from merlin.train.data import TrainingData
    from merlin.train.loading.loader import ShardLoader

FORMAT = FileFormat("merlin-trainer", 1)
AGREE_EVERY = 10  # steps between which ranks do not ask each other whether to stop
# what a seed is used for enters it
_INIT, _START, _RUN, _EVALUATE, _WIDEN = 0x494E4954, 0x5354415254, 0x52554E, 0x4556414C, 0x57494445

Batch = dict[str, Tensor]


def seed_initial_weights(seed: int, trainer: int) -> None:
    """Make what is drawn next a function of the seed and the trainer, the same on all its ranks."""
    seed_all(derive_seed(_INIT, seed, trainer))


class Trainer:
    """Trains one model; `num_steps` is the length of the run, which schedules depend on."""

    def __init__(
        self,
        trainee: Trainee,
        loader: ShardLoader,
        shapes: Shapes,
        config: TrainConfig,
        *,
        num_steps: int,
        mesh: Mesh,
        device: torch.device,
        widths: Widths | None = None,
    ) -> None:
        """`shapes` are those of the loader's batches. Without `widths` the model keeps its own."""
        self.index = mesh.trainer
        self.mesh = mesh
        self.device = device
        self.config = config
        self.loader = loader
        self.num_steps = num_steps
        self.step = 0
        self._shapes = shapes
        self._widths = widths
        fp16 = config.training.precision == "fp16"
        self._scaler = torch.amp.GradScaler(device.type) if fp16 else None
        self._learner = self._new_learner(trainee, None if widths is None else widths.capacity)
        # looking at a loss would wait for a GPU, so there the optimiser's kernel does it
        self._waits_for_device = device.type != "cpu"
        self._batches: Iterator[Batch] | None = None
        self._losses = LossRecord(config, self.index, loader, mesh)
        seed_all(derive_seed(_RUN, config.seed, self.index, mesh.ranks.rank))

    def _new_learner(self, trainee: Trainee, capacity: float | None) -> Learner:
        return Learner(trainee, self.config, self.mesh, self.device, scaler=self._scaler, capacity=capacity)

    @property
    def trainee(self) -> Trainee:
        """The model, which another one replaces when its width changes."""
        return self._learner.trainee

    @property
    def capacity(self) -> float | None:
        """The factor of the model's widths; None if they never change."""
        return self._learner.capacity

    @property
    def configured_capacity(self) -> float | None:
        return None if self._widths is None else self._widths.capacity

    @property
    def epoch(self) -> float:
        """Epochs of the trainer's share, with the fraction of the present one."""
        return self.loader.epoch + self.loader.consumed / max(1, len(self.loader.dataset))

    @property
    def lr(self) -> dict[str, float]:
        return {phase.name: float(phase.optimizer.param_groups[0]["lr"]) for phase in self._learner.phases}

    # training

    def start(self, data: TrainingData) -> None:
        """Let a model that has been drawn take what it needs from elsewhere, before its first step."""
        before = random_state(self.device)
        seed_all(derive_seed(_START, self.config.seed, 0 if self.config.merges else self.index))
        self._learner.start(data.normaliser, lambda num: _moved(data.some(num), self.device))
        set_random_state(before, self.device)

    def train_steps(self, num: int, should_stop: Callable[[], bool] | None = None) -> int:
        """Train `num` steps, fewer if `should_stop` says so; returns how many were done."""
        for done in range(num):
            if should_stop is not None and self._agree(should_stop):
                return done
            self._step(self._next_batch())
        return num

    def _agree(self, should_stop: Callable[[], bool]) -> bool:
        """True on all ranks alike if one of them is to stop."""
        if self.mesh.ranks.size == 1:
            return should_stop()
        return self.step % AGREE_EVERY == 0 and self.mesh.ranks.any(should_stop())

    def _next_batch(self) -> Batch:
        while True:
            if self._batches is None:
                self._batches = iter(self.loader)
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None  # the epoch is over

    def _step(self, batch: Batch) -> None:
        self._losses.remember_batch(self.step + 1, batch.pop("index", None))
        parts = _parts(self._shapes.with_channels(batch), self.config.training.accumulate)
        factor = lr_factor(self.config.schedule, self.step, self.num_steps)
        for phase in self._learner.phases:
            if len(self._learner.phases) > 1:
                phase.select()
            set_lr(phase.optimizer, factor)
            loss, losses = self._learner.parallel.backward(phase.name, parts)
            self._losses.add(phase.name, losses)
            self._optimise(phase, loss)
        if self._scaler is not None:
            self._scaler.update()
        self.step += 1
        self.trainee.after_step(self.step)
        if self._learner.average is not None:
            self._learner.average.update()

    def _optimise(self, phase: Phase, loss: Tensor) -> None:
        """Step the optimiser, unless the loss or a gradient is not finite."""
        optimizer, clip = phase.optimizer, self.config.training.clip_norm
        if self._scaler is not None:
            if clip is not None:
                self._scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(phase.parameters, clip)
            self._scaler.step(optimizer)
        else:
            norm = None if clip is None else nn.utils.clip_grad_norm_(phase.parameters, clip)
            probe = self._learner.parallel.probe(loss, phase.parameters, norm)
            if self._waits_for_device:
                optimizer.grad_scale = None  # type: ignore[attr-defined]
                optimizer.found_inf = torch.isfinite(probe).logical_not_().float()  # type: ignore[attr-defined]
                optimizer.step()
            elif math.isfinite(probe):
                optimizer.step()

    def take_losses(self) -> dict[str, float]:
        """Means of the losses since the last call, over steps and ranks; "phase/name" where there are several phases.

        Raises TrainingError if the loss has not been finite for `nonfinite_limit` steps in a row.
        """
        return self._losses.take(self.step)

    # evaluation

    def evaluate(self, loader: ShardLoader) -> dict[str, float]:
        """Means of the metrics over all samples of a loader, of the averaged weights if there are such.

        The trainer's random numbers stay as they are, and those that metrics draw are the same at each call.
        """
        sums: dict[str, Tensor] = {}
        count = 0
        average, parallel = self._learner.average, self._learner.parallel
        parallel.sync_buffers()
        self.trainee.eval()
        try:
            with (
                seeded(derive_seed(_EVALUATE, self.config.seed), self.device),
                torch.no_grad(),
                contextlib.nullcontext() if average is None else average.applied(),
            ):
                loader.seek(0)
                for batch in loader:
                    num = len(next(iter(batch.values())))
                    if not num:
                        continue
                    for name, value in parallel.metrics(self._shapes.with_channels(batch)).items():
                        total = value.double().sum()
                        sums[name] = sums[name] + total if name in sums else total
                    count += num
        finally:
            self.trainee.train()
        return self._means(sums, count)

    def _means(self, sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
        """The means over the samples of all ranks, of which some may have had none."""
        ranks = self.mesh.data
        names = sorted(self.trainee.directions()) if ranks.size > 1 else list(sums)
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        both = torch.stack([*(sums.get(name, zero) for name in names), zero + count])
        *totals, num = ranks.sum(both).tolist()
        return {name: total / num if num else math.nan for name, total in zip(names, totals, strict=True)}

    # state

    def state_dict(self) -> State:
        """Everything that later steps depend on; all ranks have to call it."""
        self._learner.parallel.sync_buffers()
        return {
            **FORMAT.head(),
            "step": self.step,
            "bad_steps": self._losses.bad_steps,
            **self._learner.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "random": self.mesh.ranks.gather(random_state(self.device)),
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on from what `state_dict` gave. Raises CheckpointError if the state is of another model."""
        if wrong := FORMAT.mismatch(state):
            raise CheckpointError(f"not a state of a trainer: {wrong}")
        if state.get("capacity") != self.capacity:
            self._resize(state.get("capacity"))
        self._learner.load_state_dict(state)
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self.step = state["step"]
        self._losses.reset(state["bad_steps"])
        self._batches = None
        self.loader.load_state_dict(state["loader"])
        ranks = self.mesh.ranks
        if len(state["random"]) == ranks.size:  # with another number of ranks, other numbers are drawn
            set_random_state(state["random"][ranks.rank], self.device)

    def export_state(self, parts: Sequence[str] = ("all",)) -> State:
        """Weights, their average, and the optimiser's complete state of named parts: what trainers exchange.

        As `Learner.export` gives it, and "bad_steps". "all" is every part. All ranks have to call it.
        """
        self._learner.parallel.sync_buffers()
        return {**self._learner.export(self._learner.keys_of(parts)), "bad_steps": self._losses.bad_steps}

    def import_state(self, state: State, parts: Sequence[str] = ("all",)) -> None:
        """Take over what another trainer's `export_state` gave, of these parts; the rest stays.

        If the state has another capacity, all of the model gets that. All ranks have to call it.
        Raises TrainingError if it does not fit the model.
        """
        keys, everything = self._learner.keys_of(parts), self._learner.keys_of(["all"])
        bad_steps, capacity = int(state.get("bad_steps", 0)), state.get("capacity")
        if capacity != self.capacity:
            if keys != everything:
                state, keys = merged(self.export_state(), state, keys), everything
            self._resize(capacity)
        self._learner.take(state, keys)
        self._losses.bad_steps = bad_steps

    def values(self, parts: Sequence[str] = ("all",)) -> Tensor:
        """The values of named parts that trainers average, as a copy on the CPU (n,): see `flat`.

        All ranks have to call it.
        """
        self._learner.parallel.sync_buffers()
        return self._learner.values(self._learner.keys_of(parts))

    def take_values(self, values: Tensor, parts: Sequence[str] = ("all",), *, is_sound: bool = True) -> None:
        """Take over a mean (n,) of what `values` gave; with `is_sound`, this trainer's own values are in it.

        All ranks have to call it. Raises TrainingError if the mean does not fit the model.
        """
        self._learner.take_values(values, self._learner.keys_of(parts))
        if not is_sound:
            self._losses.bad_steps = 0

    def _resize(self, capacity: float | None) -> None:
        """Replace the model by one of another width, drawn as a function of seed, trainer and step."""
        if self._widths is None or capacity is None:
            raise TrainingError("the model that was received has another width, and this one keeps its own")
        before = random_state(self.device)
        seed_all(derive_seed(_WIDEN, self.config.seed, self.index, self.step))
        trainee = self._widths.build(capacity)
        del self._learner  # before the new one needs memory
        gc.collect()
        if self.config.training.compile:
            torch.compiler.reset()
        self._learner = self._new_learner(trainee, capacity)
        set_random_state(before, self.device)

    def close(self) -> None:
        self._batches = None
        self.loader.close()


def _moved(batch: Batch, device: torch.device) -> Batch:
    return {key: values.to(device) for key, values in batch.items()}


def _parts(batch: Batch, num: int) -> list[Batch]:
    if num == 1:
        return [batch]
    chunks = {key: values.chunk(num) for key, values in batch.items()}
    return [{key: values[i] for key, values in chunks.items()} for i in range(num)]
