"""Models small enough for tests, named in configurations as "tiny_models:…"."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch import distributed as dist

from merlin.train.models.base import Shapes, Trainee

_told: list[int] = []  # the signals that a process with HOLD_AFTER has received since its first batch


def hold(num_batches: int) -> None:
    """Wait until this process is told to stop, if HOLD_AFTER asks for that after this many batches.

    For tests that stop or kill a trainer in the middle of its work, however early or late they do so. If HOLD_TRAINER
    is set, only this one of the trainers of a command waits.
    """
    after = int(os.environ.get("HOLD_AFTER", 0))
    if not after or os.environ.get("HOLD_TRAINER", "") not in ("", *sys.argv[-1:]):
        return
    if num_batches == 1:  # not only where it waits: the signal may come just before
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _noting(signal.getsignal(number)))
    while num_batches == after and not _told:
        time.sleep(0.01)


def _noting(before):
    def handle(number, frame):
        _told.append(number)
        before(number, frame)

    return handle


class Noisy(Trainee):
    """Draws random numbers, keeps buffers, and sees images."""

    def __init__(self, shapes: Shapes, width: int = 16) -> None:
        super().__init__()
        channels = sum(c for c, _, _ in shapes.images.values())
        self.names, self.num_batches = tuple(shapes.images), 0
        self.pixels = nn.Conv2d(channels, 4, 3) if channels else None
        self.body = nn.Sequential(
            nn.Linear(len(shapes.inputs), width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2),
            nn.Linear(width, len(shapes.scalars)),
        )  # fmt: skip

    def forward(self, batch, phase="model"):
        self.num_batches += self.training
        hold(self.num_batches * self.training)
        loss = nn.functional.mse_loss(self.body(batch["inputs"]), batch["scalars"])
        if self.pixels is not None:
            loss = (
                loss + 0.01 * self.pixels(torch.cat([batch[name] for name in self.names], 1)).square().mean()
            )
        return {"loss": loss, "twice": 2 * loss.detach()}

    def metrics(self, batch):
        return {"loss": (self.body(batch["inputs"]) - batch["scalars"]).square().mean(1)}


class Gan(Trainee):
    """Two phases with parameters of their own, a part that may be exchanged, and a frozen copy."""

    phases = ("discriminator", "generator")

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        num_in, num_out = len(shapes.inputs), len(shapes.scalars)
        self.generator = nn.Sequential(nn.Linear(num_in, 16), nn.ReLU(), nn.Linear(16, num_out))
        self.discriminator = nn.Linear(num_in + num_out, 1)
        self.frozen = nn.Linear(num_in + num_out, 1)
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)

    def parameters_of(self, phase) -> Iterable[nn.Parameter]:
        return getattr(self, phase).parameters()

    def forward(self, batch, phase="generator"):
        made = self.generator(batch["inputs"])
        both = torch.cat([batch["inputs"], made], 1)
        if phase == "generator":
            loss = nn.functional.l1_loss(made, batch["scalars"]) - 0.01 * self.frozen(both).mean()
            return {"loss": loss}
        real = self.discriminator(torch.cat([batch["inputs"], batch["scalars"]], 1))
        return {
            "loss": (real.clamp(-1, 1) ** 2).mean() + (self.discriminator(both.detach()) - 1).square().mean()
        }

    def metrics(self, batch):
        return {"loss": (self.generator(batch["inputs"]) - batch["scalars"]).abs().mean(1)}

    def after_step(self, step):
        self.frozen.load_state_dict(self.discriminator.state_dict())

    def parts(self):
        return {"generators": ["generator."]}


class Exploding(Noisy):
    """A model whose loss is no number from some step on."""

    def __init__(self, shapes: Shapes, after: int = 5) -> None:
        super().__init__(shapes)
        self.after, self.seen = after, 0

    def forward(self, batch, phase="model") -> dict[str, Tensor]:
        found = super().forward(batch, phase)
        self.seen += self.training
        return {"loss": found["loss"] * (float("nan") if self.seen > self.after else 1.0)}


class Lopsided(Noisy):
    """A model whose loss is infinite on the second of several ranks, and whose gradients are finite."""

    def forward(self, batch, phase="model") -> dict[str, Tensor]:
        is_second = dist.is_initialized() and dist.get_rank() == 1
        return {"loss": super().forward(batch, phase)["loss"] + (float("inf") if is_second else 0.0)}


def greedy(shapes: Shapes) -> Trainee:
    """A model that asks for more memory than there is."""

    class Greedy(Noisy):
        seen = 0

        def forward(self, batch, phase="model"):
            self.seen += 1
            if self.seen > 1:
                torch.empty(1 << 60, dtype=torch.uint8)
            return super().forward(batch, phase)

    return Greedy(shapes)


class Elastic(Noisy):
    """A user's model whose width may change."""

    version = 3

    def __init__(self, shapes: Shapes, capacity: float = 1.0) -> None:
        super().__init__(shapes, max(1, round(16 * capacity)))

    def predict(self, inputs):
        return {"scalars": self.body(inputs)}


class Recurrent(Noisy):
    """One with a layer whose weights cannot be made wider tensor by tensor."""

    def __init__(self, shapes: Shapes, capacity: float = 1.0) -> None:
        super().__init__(shapes)
        self.memory = nn.GRU(4, round(8 * capacity))


def rigid(shapes: Shapes, capacity: float = 1.0) -> Trainee:
    """One that knows the option and does nothing with it."""
    return Noisy(shapes)


def hungry(shapes: Shapes, capacity: float = 1.0) -> Trainee:
    """One that there is no memory for, with any width but the first and a quarter of it."""
    if capacity not in (1.0, 0.25):
        torch.empty(1 << 60, dtype=torch.uint8)
    return Elastic(shapes, capacity)


class Blind(Noisy):
    """One that predicts no images."""

    def predict(self, inputs):
        return {"scalars": self.body(inputs)}


class Stumbling(Noisy):
    """One that learns, and cannot predict many samples at once."""

    def predict(self, inputs):
        if len(inputs) > 10:
            raise RuntimeError("on its way it stumbled")
        return {"scalars": self.body(inputs)}


class Wrong(Noisy):
    """One whose `predict` makes a mistake; with `late`, only after the model was trained."""

    def __init__(self, shapes: Shapes, how: str, late: bool = False) -> None:
        super().__init__(shapes)
        self.how, self.late = how, late
        self.register_buffer("num_steps", torch.tensor(0))

    def after_step(self, step):
        self.num_steps += 1

    def predict(self, inputs):
        y = self.body(inputs)
        mistakes = {
            "column": lambda: {"scalars": y[:, :1]},
            "mean": lambda: {"scalars": y.mean(0, keepdim=True)},
            "swapped": lambda: {"scalars": y.T},
            "key": lambda: {"scalar": y},
            "tensor": lambda: y,
            "array": lambda: {"scalars": y.detach().numpy()},
            "raises": lambda: [][3],
        }
        is_right = self.late and not self.num_steps
        return {"scalars": y} if is_right else mistakes[self.how]()
