"""A trainer: a model, an optimiser for each of its phases, its data, and everything else that a step depends on.

The same code for one process and for several ranks that share each batch. Nothing in a step waits for a GPU: losses
stay on the device until `take_losses` asks for them, and an update whose loss is not finite is left out by the
optimiser's own kernel.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from merlin.errors import CheckpointError, TrainingError
from merlin.train.data import with_channels
from merlin.train.distributed import Ranks
from merlin.train.loading.order import derive_seed
from merlin.train.models.base import Trainee
from merlin.train.optim import BASE_LR, MovingAverage, lr_factor, set_lr
from merlin.train.phase import Phase
from merlin.train.random_state import random_state, seed_all, set_random_state

if TYPE_CHECKING:
    from merlin.train.config import TrainConfig
    from merlin.train.loading.loader import ShardLoader

FORMAT = "merlin-trainer"
VERSION = 1
AGREE_EVERY = 10  # steps between which ranks do not ask each other whether to stop
_INIT, _RUN, _EVALUATE = 0x494E4954, 0x52554E, 0x4556414C  # what a seed is used for enters it
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_EXPORT = ("lr", "betas", "weight_decay", "momentum", "eps", BASE_LR)

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
    ) -> None:
        self.index = index
        self.ranks = Ranks() if ranks is None else ranks
        self.device = torch.device("cpu") if device is None else device
        self.config = config
        self.loader = loader
        self.num_steps = num_steps
        self.step = 0
        self.trainee = trainee.to(self.device)
        self.trainee.train()
        with torch.no_grad():
            self.ranks.broadcast([*self.trainee.parameters(), *self.trainee.buffers()])
        self.phases = [Phase(trainee, name, config, self.ranks, self.device) for name in trainee.phases]
        self._names = {id(p): name for name, p in trainee.named_parameters()}
        decay = config.training.ema
        named = [(n, p) for n, p in trainee.named_parameters() if p.is_floating_point()]
        self.average = None if decay is None else MovingAverage(named, decay)
        self._dtype = _DTYPES.get(config.training.precision)
        self._scaler = torch.amp.GradScaler(self.device.type) if self._dtype is torch.float16 else None
        # looking at a loss would wait for a GPU, so there the optimiser's kernel does it
        self._waits_for_device = self.device.type != "cpu"
        self._batches: Iterator[Batch] | None = None
        self._losses: list[tuple[str, dict[str, Tensor]]] = []
        training = config.training
        self._recent: deque[tuple[int, Tensor]] = deque(maxlen=training.nonfinite_limit + training.log_every)
        self._bad_steps = 0
        self.phases[0].select()
        seed_all(derive_seed(_RUN, config.seed, index, self.ranks.rank))

    @property
    def epoch(self) -> float:
        """Epochs of the trainer's share, with the fraction of the present one."""
        return self.loader.epoch + self.loader.consumed / max(1, self.loader.schedule.size)

    @property
    def lr(self) -> dict[str, float]:
        """The present learning rate of each phase."""
        return {phase.name: float(phase.optimizer.param_groups[0]["lr"]) for phase in self.phases}

    # training

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
        for phase in self.phases:
            if len(self.phases) > 1:
                phase.select()
            set_lr(phase.optimizer, factor)
            self._update(phase, batch)
        if self._scaler is not None:
            self._scaler.update()
        self.step += 1
        self.trainee.after_step(self.step)
        if self.average is not None:
            self.average.update()

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
            f"{phase}/{name}" if len(self.phases) > 1 else name for phase, of in self._losses for name in of
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
        averaged = contextlib.nullcontext() if self.average is None else self.average.applied()
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
            "model": self.trainee.state_dict(),
            "optimizers": {phase.name: phase.optimizer.state_dict() for phase in self.phases},
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "random": self.ranks.gather(random_state(self.device)),
            "loader": self.loader.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        """Be what the trainer was. Raises CheckpointError if the state is of another model."""
        if (state.get("format"), state.get("version")) != (FORMAT, VERSION):
            raise CheckpointError(f"not a state of a trainer: {state.get('format')} {state.get('version')}")
        try:
            self.trainee.load_state_dict(state["model"])
            for phase in self.phases:
                phase.optimizer.load_state_dict(state["optimizers"][phase.name])
        except (RuntimeError, ValueError, KeyError) as error:
            raise CheckpointError(f"the checkpoint is of another model: {error}") from error
        if self._scaler is not None and state["scaler"]:
            self._scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"] or state["model"])
        self.step, self._bad_steps = state["step"], state["bad_steps"]
        self._losses.clear()
        self._batches = None
        self.loader.load_state_dict(state["loader"])
        if len(state["random"]) == self.ranks.size:  # with another number of ranks, other numbers are drawn
            set_random_state(state["random"][self.ranks.rank], self.device)

    def export_state(self, parts: Sequence[str] = ("all",)) -> State:
        """Weights, their average, and the optimiser's whole state of named parts: what trainers exchange.

        {"weights": {name: …}, "average": {…}, "optimizers": {phase: {"hyper": {…}, "state": {name: {…}}}},
        "bad_steps": num},
        on the CPU and not shared with the trainer. "all" is every part.
        """
        self.sync_buffers()
        keys = self._keys_of(parts)
        weights = {k: _copied(v) for k, v in self.trainee.state_dict().items() if k in keys}
        average = {} if self.average is None else self.average.state_dict()
        optimizers = {}
        for phase in self.phases:
            mine = [p for p in phase.parameters if self._names[id(p)] in keys]
            if mine:
                group = phase.optimizer.param_groups[0]
                optimizers[phase.name] = {
                    "hyper": {name: group[name] for name in _EXPORT if name in group},
                    "state": {
                        self._names[id(p)]: {k: _copied(v) for k, v in phase.optimizer.state[p].items()}
                        for p in mine
                        if p in phase.optimizer.state
                    },
                }
        return {
            "weights": weights,
            "average": {k: _copied(v) for k, v in average.items() if k in keys},
            "optimizers": optimizers,
            "bad_steps": self._bad_steps,
        }

    @torch.no_grad()
    def import_state(self, state: State, parts: Sequence[str] = ("all",)) -> None:
        """Take over what another trainer's `export_state` gave, of these parts; the rest stays.

        Raises TrainingError if it does not fit the model.
        """
        keys = self._keys_of(parts)
        mine = self.trainee.state_dict()
        for key, value in state["weights"].items():
            if key in keys:
                if key not in mine or mine[key].shape != value.shape:
                    raise TrainingError(f"the model that was received has another '{key}'")
                mine[key].copy_(value)
        if self.average is not None:
            received = state["average"] or state["weights"]
            self.average.load_state_dict({k: v for k, v in received.items() if k in keys})
        for phase in self.phases:
            if phase.name in state["optimizers"]:
                self._import_optimizer(phase, state["optimizers"][phase.name], keys)
        self._bad_steps = int(state.get("bad_steps", 0))

    def _import_optimizer(self, phase: Phase, received: State, keys: set[str]) -> None:
        group = phase.optimizer.param_groups[0]
        group.update({name: received["hyper"][name] for name in _EXPORT if name in received["hyper"]})
        for parameter in phase.parameters:
            name = self._names[id(parameter)]
            if name in keys:
                found = received["state"].get(name, {})
                phase.optimizer.state[parameter] = {
                    k: v.to(parameter.device, copy=True) if isinstance(v, Tensor) else v
                    for k, v in found.items()
                }

    def _keys_of(self, parts: Sequence[str]) -> set[str]:
        keys = set(self.trainee.state_dict())
        if "all" in parts:
            return keys
        prefixes = tuple(prefix for part in parts for prefix in self.trainee.parts()[part])
        return {key for key in keys if key.startswith(prefixes)}

    def close(self) -> None:
        self._batches = None
        self.loader.close()


def _parts(batch: Batch, num: int) -> list[Batch]:
    chunks = {key: values.chunk(num) for key, values in batch.items()}
    return [{key: values[i] for key, values in chunks.items()} for i in range(num)]


def _copied(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if isinstance(value, Tensor) else value
