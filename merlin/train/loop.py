"""The training loop: steps, and between them rounds, validations, checkpoints, and the end."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

from merlin.errors import CheckpointError, TrainingError
from merlin.train.events import Note, Report
from merlin.train.models.version import code_of, require_code

if TYPE_CHECKING:
    from merlin.train.checkpoint import Checkpoints
    from merlin.train.config import TrainConfig
    from merlin.train.events import Observer, StopRequest
    from merlin.train.loading.loader import ShardLoader
    from merlin.train.metrics_log import MetricsLog
    from merlin.train.trainer import Trainer

ANNOUNCE_S = 0.2  # least time between two reports
EndState = Literal["finished", "stopped"]


class RoundInterruptedError(Exception):
    """A stop was asked for while a trainer waited for others; its model is as it was before the round."""


class Tournament(Protocol):
    """Rounds with other trainers. Called by all ranks of a trainer at the same step."""

    def play(self, trainer: Trainer, number: int) -> Mapping[str, Any]:
        """Round `number` (from 1): may replace parts of the trainer's model.

        Returns facts for the metrics file, as {"partner": 3, "kept": "local" | "partner", "scores": {…}}; without
        "kept" if it met nobody. Raises RoundInterruptedError.
        """
        ...

    def agree(self, trainer: Trainer, number: int) -> int:
        """The round, at most `number`, from which all go on; `number` is that of the newest checkpoint."""
        ...

    def after_save(self, number: int, saved: bool) -> None:
        """A checkpoint was written after round `number`, or could not be; only the first rank calls it."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What the next round depends on, for the trainer's checkpoint: tensors and plain values."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self, finished: bool) -> None: ...


@dataclass(frozen=True)
class Judge:
    """The metric that decides what is best, on the validation split."""

    metric: str
    direction: Literal["min", "max"]

    @staticmethod
    def of(config: TrainConfig, directions: Mapping[str, Literal["min", "max"]]) -> Judge:
        """That of early stopping, else the tournament's first, else the loss."""
        if config.training.early_stopping is not None:
            name = config.training.early_stopping.metric
            return Judge(name, directions[name])
        if config.tournament.metrics:
            first = config.tournament.metrics[0]
            return Judge(first.name, first.direction or directions[first.name])
        return Judge("loss", directions["loss"])

    def is_better(self, value: float, than: float | None, by: float = 0.0) -> bool:
        """Whether a value is finite, and better; anything finite is better than None."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        return value < than - by if self.direction == "min" else value > than + by


@dataclass
class Progress:
    """What the loop remembers over a restart."""

    best: float | None = None
    best_step: int = 0
    best_metrics: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    validated_step: int = -1
    reference: float | None = None  # what the next improvement is one of
    stale: int = 0  # validations since there was an improvement
    round: int = 0
    wins: int = 0
    train_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Ending:
    """How a trainer's run ended."""

    state: EndState
    reason: str
    step: int
    progress: Progress


class Loop:
    """Trains to the end of the run, from wherever the trainer is; all ranks of a trainer run it."""

    def __init__(
        self,
        trainer: Trainer,
        validation: ShardLoader,
        judge: Judge,
        checkpoints: Checkpoints,
        *,
        log: MetricsLog | None = None,
        observer: Observer | None = None,
        stop: StopRequest | None = None,
        tournament: Tournament | None = None,
    ) -> None:
        """Only the first rank of a trainer has a log and an observer."""
        self.trainer = trainer
        self.validation = validation
        self.judge = judge
        self.checkpoints = checkpoints
        self.tournament = tournament
        self.progress = Progress()
        self.log = log
        self._observer = observer
        self._stop = stop
        training = trainer.config.training
        epoch_steps = max(1, len(trainer.loader))
        self._log_every = training.log_every
        self._validate_every = training.validate_every or epoch_steps
        self._checkpoint_every = training.checkpoint_every or self._validate_every
        self._round_every = trainer.config.tournament.interval if tournament is not None else 0
        self._losses: dict[str, float] = {}
        self._rate = 0.0
        self._window = (0, 0.0)  # steps and seconds since the last line
        self._began = (trainer.step, time.perf_counter())
        self._announced = 0.0
        self._saved_step = -1
        self.finished = False

    def resume(self) -> bool:
        """Go to where the newest readable checkpoint is; whether there is one. Raises CheckpointError."""
        ranks = self.trainer.ranks
        state = self.checkpoints.load_newest() if ranks.is_first else None
        if self.tournament is not None:
            state = self._agreed(self.tournament, state)
        if ranks.size > 1:
            state = ranks.from_first(state)
        if state is None:
            return False
        where = f"the checkpoint of step {state['step']:,} in {self.checkpoints.directory}"
        require_code(self.trainer.config.model.name, state.get("code", {}), where)
        self.trainer.load_state_dict(state["trainer"])
        self.progress = Progress(**state["progress"])
        if self.tournament is not None and state.get("tournament") is not None:
            self.tournament.load_state_dict(state["tournament"])
        if ranks.is_first and self.progress.best_step == self.trainer.step:
            self.checkpoints.mark_best(self.trainer.step)  # a process that is killed may have left it undone
        self._saved_step = self.trainer.step
        self._began = (self.trainer.step, time.perf_counter())
        return True

    def _agreed(self, tournament: Tournament, state: dict[str, Any] | None) -> dict[str, Any] | None:
        """The state from which all trainers can go on, which may be an older one."""
        newest = 0 if state is None else int(state["progress"]["round"])
        try:
            number = tournament.agree(self.trainer, newest)
        except RoundInterruptedError:
            return state
        if number == newest or not self.trainer.ranks.is_first:
            return state
        for step in reversed(self.checkpoints.steps()):
            older = self.checkpoints.load(step)
            if older["progress"]["round"] == number:
                self.note(
                    f"going back to step {step:,}, because another trainer has played {number} rounds only"
                )
                return older
        if number == 0:
            return None
        raise CheckpointError(
            f"another trainer goes on after round {number}, and {self.checkpoints.directory} has no checkpoint of it"
        )

    def run(self) -> Ending:
        """Train until the run is over, or somebody wants it to stop.

        Raises TrainingError when it cannot go on. The state at the end is in a checkpoint.
        """
        trainer = self.trainer
        while trainer.step < trainer.num_steps and not self._stale:
            if not self.advance():
                return self._end("stopped", self._stop.reason if self._stop is not None else "")
        if self.progress.validated_step != trainer.step:
            self._validate()
        return self._end("finished", self._stale or f"step {trainer.step:,} reached")

    def advance(self) -> bool:
        """Train to the next step after which there is something to do, and do it; False if a stop was asked for."""
        trainer = self.trainer
        if self._round_is_due:
            return self._after(trainer.step)
        target = self._next_event()
        begin = time.perf_counter()
        done = trainer.train_steps(target - trainer.step, self._stop)
        self._count(done, time.perf_counter() - begin)
        if trainer.step < target:
            return False
        return self._after(trainer.step)

    @property
    def _stale(self) -> str:
        """Why the run ends early, if it does."""
        stopping, progress = self.trainer.config.training.early_stopping, self.progress
        if stopping is None or progress.stale < stopping.patience:
            return ""
        return (
            f"{self.judge.metric} has not improved in {progress.stale} validations, "
            f"since step {progress.best_step:,}"
        )

    def _next_event(self) -> int:
        """The next step after which there is something to do."""
        step = self.trainer.step
        intervals = (self._log_every, self._validate_every, self._checkpoint_every, self._round_every)
        return min(self.trainer.num_steps, *(step - step % every + every for every in intervals if every))

    @property
    def _round_is_due(self) -> bool:
        """Whether a round comes before the next step; at the end there is none."""
        every, step = self._round_every, self.trainer.step
        if not every or step % every or not 0 < step < self.trainer.num_steps:
            return False
        return self.progress.round < step // every

    def _after(self, step: int) -> bool:
        """What is due after a step; in this order, so that a checkpoint holds the results of the rest.

        False if a round was interrupted: then nothing was done, and all of it is due when the run goes on.
        """
        played = self._round_is_due
        validate = step % self._validate_every == 0 or step == self.trainer.num_steps
        if step % self._log_every == 0 or played or validate:
            self._write_losses()
        if played and not self._play():
            return False
        is_best = self._validate() if validate else False
        if is_best or played or step % self._checkpoint_every == 0:
            self._save(best=is_best)
        self._announce("training")
        return True

    def _count(self, steps: int, seconds: float) -> None:
        self.progress.train_s += seconds
        self._window = (self._window[0] + steps, self._window[1] + seconds)

    def _write_losses(self) -> None:
        """Fetch the losses, which waits for the device, and write a line of them."""
        trainer = self.trainer
        begin = time.perf_counter()
        losses = trainer.take_losses()
        self._count(0, time.perf_counter() - begin)
        if not losses:
            return
        self._losses = losses
        steps, seconds = self._window
        self._window = (0, 0.0)
        self._rate = steps * trainer.config.training.batch_size / seconds if seconds else 0.0
        if self.log is not None:
            self.log.write(
                "train",
                trainer.step,
                {**losses, **{f"lr/{phase}": lr for phase, lr in trainer.lr.items()}},
                epoch=round(trainer.epoch, 4),
                time_s=round(self.progress.train_s, 3),
                samples_per_s=round(self._rate, 1),
            )

    def _play(self) -> bool:
        """Play the round that is due; False if it was interrupted."""
        assert self.tournament is not None
        progress = self.progress
        number = self.trainer.step // self._round_every
        try:
            facts = dict(self.tournament.play(self.trainer, number))
        except RoundInterruptedError:
            return False
        progress.round = number
        progress.wins += facts.get("kept") == "local"
        if self.log is not None:
            self.log.write("round", self.trainer.step, facts.pop("values", {}), round=number, **facts)
        return True

    def _validate(self) -> bool:
        """Whether the trainer has never been better."""
        trainer, progress = self.trainer, self.progress
        metrics = trainer.evaluate(self.validation)
        progress.metrics, progress.validated_step = metrics, trainer.step
        if self.judge.metric not in metrics:
            known = ", ".join(metrics)
            raise TrainingError(f"the model computes no metric '{self.judge.metric}'; it computes: {known}")
        value = metrics[self.judge.metric]
        stopping = trainer.config.training.early_stopping
        is_best = self.judge.is_better(value, progress.best)
        if is_best:
            progress.best, progress.best_step, progress.best_metrics = value, trainer.step, metrics
        progress.stale += 1
        if self.judge.is_better(value, progress.reference, 0.0 if stopping is None else stopping.min_delta):
            progress.reference, progress.stale = value, 0
        self._saved_step = -1
        if self.log is not None:
            epoch, seconds = round(trainer.epoch, 4), round(progress.train_s, 3)
            self.log.write("validation", trainer.step, metrics, epoch=epoch, time_s=seconds, best=is_best)
        return is_best

    def _save(self, *, best: bool = False) -> bool:
        """Write a checkpoint; whether it is there, now."""
        trainer = self.trainer
        state = {
            "code": code_of(trainer.config.model.name),
            "trainer": trainer.state_dict(),
            "progress": self.progress.to_json(),
            "judge": asdict(self.judge),
            "tournament": None if self.tournament is None else self.tournament.state_dict(),
        }
        saved = True
        if trainer.ranks.is_first:
            saved = self.checkpoints.save(state, trainer.step, best=best)
            if self.tournament is not None:
                self.tournament.after_save(self.progress.round, saved)
        if saved:
            self._saved_step = trainer.step
        return saved

    def _end(self, state: EndState, reason: str) -> Ending:
        """Write what is left to write, and be sure that it is there."""
        trainer = self.trainer
        if trainer.step != self._saved_step:
            self._write_losses()
            if not self._save(best=self.progress.best_step == trainer.step > 0):
                steps = self.checkpoints.steps()
                rest = f"the newest is of step {steps[-1]:,}" if steps else "there is none"
                raise CheckpointError(
                    f"the last checkpoint of trainer {trainer.index} could not be written; {rest} "
                    f"in {self.checkpoints.directory}"
                )
        self.finished = state == "finished"
        if self.log is not None:
            self.log.write("end", trainer.step, {}, state=state, reason=reason)
        self._announce(state, reason)
        return Ending(state, reason, trainer.step, self.progress)

    def _announce(self, state: Literal["training", "finished", "stopped"], reason: str = "") -> None:
        now = time.perf_counter()
        if self._observer is None or (state == "training" and now - self._announced < ANNOUNCE_S):
            return
        self._announced = now
        self._observer.report(replace(self.report(), state=state, reason=reason))

    def report(self) -> Report:
        """How far the trainer is."""
        trainer, progress = self.trainer, self.progress
        begin, since = self._began
        done = trainer.step - begin
        left = trainer.num_steps - trainer.step
        pace = (time.perf_counter() - since) / done if done else None
        return Report(
            trainer=trainer.index,
            step=trainer.step,
            num_steps=trainer.num_steps,
            epoch=trainer.epoch,
            samples_per_s=self._rate,
            eta_s=None if pace is None else pace * left,
            losses=self._losses,
            metrics=progress.metrics,
            best=progress.best,
            best_step=progress.best_step,
            round=progress.round,
            wins=progress.wins,
        )

    def note(self, text: str) -> None:
        if self._observer is not None:
            self._observer.note(Note(self.trainer.index, text))
