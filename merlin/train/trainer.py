"""A trainer: a model, an optimiser for each of its phases, its data, and everything else that a step depends on.

The same code for one process and for several ranks that share each batch. Nothing in a step waits for a GPU: losses
stay on the device until `take_losses` asks for them, and an update whose loss is not finite is left out by the
optimiser's own kernel.
"""

from __future__ import annotations

import contextlib
import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from merlin.errors import CheckpointError, TrainingError
from merlin.train.data import with_channels
from merlin.train.distributed import Ranks
from merlin.train.learner import Learner, merged
from merlin.train.loading.order import derive_seed
from merlin.train.models.base import Trainee
from merlin.train.optim import lr_factor, set_lr
from merlin.train.phase import Phase
from merlin.train.random_state import random_state, seed_all, set_random_state
from merlin.train.widths import Widths

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig
    from merlin.train.loading.loader import ShardLoader
    from merlin.train.loading.normalise import Normaliser

FORMAT = "merlin-trainer"
VERSION = 1
AGREE_EVERY = 10  # steps between which ranks do not ask each other whether to stop
# what a seed is used for enters it
_INIT, _START, _RUN, _EVALUATE, _WIDEN = 0x494E4954, 0x5354415254, 0x52554E, 0x4556414C, 0x57494445
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}

State = dict[str, Any]
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
        config: TrainConfig,
        *,
        num_steps: int,
        index: int = 0,
        ranks: Ranks | None = None,
        device: torch.device | None = None,
        widths: Widths | None = None,
    ) -> None:
        """Without `widths` the model keeps its own."""
        self.index = index
        self.ranks = Ranks() if ranks is None else ranks
        self.device = torch.device("cpu") if device is None else device
        self.config = config
        self.loader = loader
        self.num_steps = num_steps
        self.step = 0
        self._widths = widths
        capacity = None if widths is None else widths.capacity
        self._learner = Learner(trainee, config, self.ranks, self.device, capacity)
        self._dtype = _DTYPES.get(config.training.precision)
        self._scaler = torch.amp.GradScaler(self.device.type) if self._dtype is torch.float16 else None
        # looking at a loss would wait for a GPU, so there the optimiser's kernel does it
        self._waits_for_device = self.device.type != "cpu"
        self._batches: Iterator[Batch] | None = None
        self._losses: list[tuple[str, dict[str, Tensor]]] = []
        training = config.training
        self._recent: deque[tuple[int, Tensor]] = deque(maxlen=training.nonfinite_limit + training.log_every)
        self._bad_steps = 0
        seed_all(derive_seed(_RUN, config.seed, index, self.ranks.rank))

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
        return self.loader.epoch + self.loader.consumed / max(1, self.loader.schedule.size)

    @property
    def lr(self) -> dict[str, float]:
        """The present learning rate of each phase."""
        return {phase.name: float(phase.optimizer.param_groups[0]["lr"]) for phase in self._learner.phases}

    # training

    def start(self, normaliser: Normaliser) -> None:
        """Let a model that has been drawn take what it needs from elsewhere, before its first step."""
        before = random_state(self.device)
        seed_all(derive_seed(_START, self.config.seed, self.index))
        self._learner.start(normaliser)
        set_random_state(before, self.device)

    def train_steps(self, num: int, should_stop: Callable[[], bool] | None = None) -> int:
        """Train `num` steps, fewer if `should_stop` says so; returns how many were done."""
        for done in range(num):
            if should_stop is not None and self._agree(should_stop):
                return done
            self._step(self._next_batch())
        return num

    def _agree(self, should_stop: Callable[[], bool]) -> bool:
        if self.ranks.size == 1:
            return should_stop()
        return self.step % AGREE_EVERY == 0 and self.ranks.any(should_stop())

    def _next_batch(self) -> Batch:
        while True:
            if self._batches is None:
                self._batches = iter(self.loader)
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            self._batches = None  # the epoch is over

    def _step(self, batch: Batch) -> None:
        index = batch.pop("index", None)
        if index is not None:
            self._recent.append((self.step + 1, index))
        batch = with_channels(batch)
        factor = lr_factor(self.config.schedule, self.step, self.num_steps)
        for phase in self._learner.phases:
            if len(self._learner.phases) > 1:
                phase.select()
            set_lr(phase.optimizer, factor)
            self._update(phase, batch)
        if self._scaler is not None:
            self._scaler.update()
        self.step += 1
        self.trainee.after_step(self.step)
        if self._learner.average is not None:
            self._learner.average.update()

    def _update(self, phase: Phase, batch: Batch) -> None:
        """Gradients of the whole batch, part by part, and the optimiser's step."""
        num = self.config.training.accumulate
        if num == 1:
            self._optimise(phase, self._backward(phase, batch))
            return
        *parts, last = _parts(batch, num)
        with phase.no_sync():
            total = sum(self._backward(phase, part, num) for part in parts)
        self._optimise(phase, total + self._backward(phase, last, num))

    def _backward(self, phase: Phase, batch: Batch, num_parts: int = 1) -> Tensor:
        """Add the gradients of a part of a batch; returns its share of the loss."""
        with self._autocast():
            losses = phase.losses(batch)
            loss = losses["loss"] if num_parts == 1 else losses["loss"] / num_parts
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()
        self._losses.append((phase.name, {name: value.detach() for name, value in losses.items()}))
        return loss.detach()

    def _optimise(self, phase: Phase, loss: Tensor) -> None:
        """Step the optimiser, unless the loss or a gradient is not finite."""
        optimizer, clip = phase.optimizer, self.config.training.clip_norm
        if self._scaler is not None:
            if clip is not None:
                self._scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(phase.parameters, clip)
            self._scaler.step(optimizer)
        else:
            if clip is not None:
                loss = loss + nn.utils.clip_grad_norm_(phase.parameters, clip)
            elif self.ranks.size > 1:  # gradients are the same on all ranks, losses are not
                loss = nn.utils.get_total_norm([p.grad for p in phase.parameters if p.grad is not None])
            if not self._waits_for_device:
                if math.isfinite(loss):
                    optimizer.step()
            else:
                optimizer.grad_scale = None  # type: ignore[attr-defined]
                optimizer.found_inf = torch.isfinite(loss).logical_not_().float()  # type: ignore[attr-defined]
                optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        if self._dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self._dtype)

    def take_losses(self) -> dict[str, float]:
        """Means of the losses since the last call, over steps and ranks; "phase/name" where there are several phases.

        Raises TrainingError if the loss has not been finite for `nonfinite_limit` steps in a row.
        """
        if not self._losses:
            return {}
        names = [
            f"{phase}/{name}" if len(self._learner.phases) > 1 else name
            for phase, of in self._losses
            for name in of
        ]
        values = torch.stack([value.float() for _, of in self._losses for value in of.values()])
        values = self.ranks.mean(values).double().cpu()
        self._losses.clear()
        columns: dict[str, list[float]] = {}
        for name, value in zip(names, values.tolist(), strict=True):
            columns.setdefault(name, []).append(value)
        self._check_finite(columns)
        return {name: sum(of) / len(of) for name, of in columns.items()}

    def _check_finite(self, columns: Mapping[str, Sequence[float]]) -> None:
        limit, parts = self._nonfinite_limit, self.config.training.accumulate
        losses = [of for name, of in columns.items() if name.rpartition("/")[2] == "loss"]
        num = len(losses[0]) // parts
        for i in range(num):
            finite = all(math.isfinite(v) for of in losses for v in of[i * parts : (i + 1) * parts])
            self._bad_steps = 0 if finite else self._bad_steps + 1
            if self._bad_steps == limit:
                raise TrainingError(self._nonfinite_message(self.step - num + i + 1))

    @property
    def _nonfinite_limit(self) -> int:
        """A tournament replaces a model whose loss is no number, so there is a round before the end."""
        config = self.config
        own = config.training.nonfinite_limit
        return max(own, config.tournament.interval + 1) if config.is_tournament else own

    def _nonfinite_message(self, step: int) -> str:
        first = step - self._bad_steps + 1
        number, index = next(((s, i) for s, i in self._recent if s >= first), (0, None))
        which = ""
        if index is not None:
            rows = self.loader.dataset.rows[index.cpu().numpy()]
            ids = self.loader.dataset.ens.sample_id[rows].tolist()
            which = f"\n  samples of step {number}: {', '.join(map(str, ids[:20]))}{', …' if len(ids) > 20 else ''}"
        return (
            f"the loss of trainer {self.index} was not finite for {self._bad_steps} steps in a row, "
            f"from step {first} on; none of them changed the weights\n"
            f"  Lower optimizer.lr, set training.clip_norm, or look at the data.{which}"
        )

    # evaluation

    def evaluate(self, loader: ShardLoader) -> dict[str, float]:
        """Means of the metrics over all samples of a loader, of the averaged weights if there are such.

        The trainer's random numbers stay as they are, and those that metrics draw are the same at each call.
        """
        sums: dict[str, Tensor] = {}
        count = 0
        devices = [self.device] if self.device.type == "cuda" else []
        averaged = (
            contextlib.nullcontext() if self._learner.average is None else self._learner.average.applied()
        )
        self.sync_buffers()
        self.trainee.eval()
        try:
            with torch.random.fork_rng(devices), torch.no_grad(), averaged:
                torch.manual_seed(derive_seed(_EVALUATE, self.config.seed))
                loader.seek(0)
                for batch in loader:
                    num = len(next(iter(batch.values())))
                    if not num:
                        continue
                    with self._autocast():
                        values = self.trainee.metrics(with_channels(batch))
                    for name, value in values.items():
                        total = value.double().sum()
                        sums[name] = sums[name] + total if name in sums else total
                    count += num
        finally:
            self.trainee.train()
        return self._means(sums, count)

    def _means(self, sums: Mapping[str, Tensor], count: int) -> dict[str, float]:
        names = sorted(self.trainee.directions()) if self.ranks.size > 1 else list(sums)
        zero = torch.zeros((), dtype=torch.float64, device=self.device)
        both = torch.stack([*(sums.get(name, zero) for name in names), zero + count])
        *totals, num = self.ranks.sum(both).tolist()
        return {name: total / num if num else math.nan for name, total in zip(names, totals, strict=True)}

    def sync_buffers(self) -> None:
        """Let all ranks have the first one's buffers, as those of batch normalisation."""
        if self.ranks.size > 1:
            self.ranks.broadcast(list(self.trainee.buffers()))

    # state

    def state_dict(self) -> State:
        """Everything that later steps depend on; all ranks have to call it."""
        self.sync_buffers()
        return {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "bad_steps": self._bad_steps,
            **self._learner.state_dict(),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "random": self.ranks.gather(random_state(self.device)),
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Be what the trainer was. Raises CheckpointError if the state is of another model."""
        if (state.get("format"), state.get("version")) != (FORMAT, VERSION):
            raise CheckpointError(f"not a state of a trainer: {state.get('format')} {state.get('version')}")
        if state.get("capacity") != self.capacity:
            self._resize(state.get("capacity"))
        self._learner.load_state_dict(state)
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        self.step, self._bad_steps = state["step"], state["bad_steps"]
        self._losses.clear()
        self._batches = None
        self.loader.load_state_dict(state["loader"])
        if len(state["random"]) == self.ranks.size:  # with another number of ranks, other numbers are drawn
            set_random_state(state["random"][self.ranks.rank], self.device)

    def export_state(self, parts: Sequence[str] = ("all",)) -> State:
        """Weights, their average, and the optimiser's whole state of named parts: what trainers exchange.

        As `Learner.export` gives it, and "bad_steps". "all" is every part.
        """
        self.sync_buffers()
        return {**self._learner.export(self._learner.keys_of(parts)), "bad_steps": self._bad_steps}

    def import_state(self, state: State, parts: Sequence[str] = ("all",)) -> None:
        """Take over what another trainer's `export_state` gave, of these parts; the rest stays.

        If the state has another capacity, all of the model gets that. All ranks have to call it.
        Raises TrainingError if it does not fit the model.
        """
        keys, everything = self._learner.keys_of(parts), self._learner.keys_of(["all"])
        bad_steps = int(state.get("bad_steps", 0))
        capacity = state.get("capacity")
        if capacity != self.capacity:
            if keys != everything:
                state, keys = merged(self.export_state(), state, keys), everything
            self._resize(capacity)
        self._learner.take(state, keys)
        self._bad_steps = bad_steps

    def _resize(self, capacity: float | None) -> None:
        """Have a model of another width, just drawn. Its draws are a function of seed, trainer and step."""
        if self._widths is None or capacity is None:
            raise TrainingError("the model that was received has another width, and this one keeps its own")
        before = random_state(self.device)
        seed_all(derive_seed(_WIDEN, self.config.seed, self.index, self.step))
        trainee = self._widths.build(capacity)
        del self._learner  # before the new one needs memory
        gc.collect()
        if self.config.training.compile:
            torch.compiler.reset()
        self._learner = Learner(trainee, self.config, self.ranks, self.device, capacity)
        set_random_state(before, self.device)

    def close(self) -> None:
        self._batches = None
        self.loader.close()


def _parts(batch: Batch, num: int) -> list[Batch]:
    chunks = {key: values.chunk(num) for key, values in batch.items()}
    return [{key: values[i] for key, values in chunks.items()} for i in range(num)]
