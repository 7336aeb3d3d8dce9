"""The training loop: steps, and between them rounds, validations, checkpoints, and the end."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from merlin.errors import CheckpointError
from merlin.train.checkpoint import Checkpoints
from merlin.train.events import (
    CheckpointSaved,
    EndState,
    Event,
    Listener,
    LossesTaken,
    RoundPlayed,
    RunEnded,
    StepDone,
    StopRequest,
    Validated,
)
from merlin.train.models.registry import code_of, require_code
from merlin.train.progress import Judge, LoopProgress
from merlin.train.state_file import State
from merlin.train.tournament.exchange import RoundInterruptedError
from merlin.train.tournament.rounds import Rounds
from merlin.train.trainer import Trainer

if TYPE_CHECKING:
    from merlin.train.loading.loader import ShardLoader


@dataclass(frozen=True)
class Ending:
    """How a trainer's run ended."""

    state: EndState
    reason: str
    step: int
    progress: LoopProgress


class Loop:
    """Trains to the end of the run, from wherever the trainer is; all ranks of a trainer run it.

    Whatever happens is an event, which every one of the `listeners` is called with.
    """

    def __init__(
        self,
        trainer: Trainer,
        validation: ShardLoader,
        judge: Judge,
        checkpoints: Checkpoints,
        stop: StopRequest,
        tournament: Rounds | None = None,
    ) -> None:
        self.trainer = trainer
        self.validation = validation
        self.judge = judge
        self.checkpoints = checkpoints
        self.tournament = tournament
        self.progress = LoopProgress()
        self.listeners: list[Listener] = []
        self.finished = False
        self._stop = stop
        training = trainer.config.training
        self._stopping = training.early_stopping
        self._log_every = training.log_every
        self._validate_every = training.validate_every or max(1, len(trainer.loader))
        self._checkpoint_every = training.checkpoint_every or self._validate_every
        self._round_every = trainer.config.tournament.interval if tournament is not None else 0
        self._window = (0, 0.0)  # steps and seconds since losses were taken
        self._saved_step = -1

    # the way of a run

    def run(self) -> Ending:
        """Train until the run is over, or is asked to stop.

        Raises TrainingError when it cannot go on. The state at the end is in a checkpoint.
        """
        trainer = self.trainer
        while trainer.step < trainer.num_steps and not self._early_end:
            if not self.advance():
                return self._end("stopped", self._stop.reason)
        if self.progress.validated_step != trainer.step:
            self._validate()
        return self._end("finished", self._early_end or f"step {trainer.step:,} reached")

    def advance(self) -> bool:
        """Train to the next step after which there is something to do, and do it; False if a stop was asked for."""
        trainer = self.trainer
        if not self._round_is_due:
            target = self._next_step_of_interest()
            begin = time.perf_counter()
            done = trainer.train_steps(target - trainer.step, self._stop)
            self._count(done, time.perf_counter() - begin)
            if trainer.step < target:
                return False
        return self._after_step(trainer.step)

    def _after_step(self, step: int) -> bool:
        """Do what is due, in this order, so that a checkpoint holds the results of the rest.

        False if a round was interrupted: then nothing was done, and all of it is due when the run goes on.
        """
        play = self._round_is_due
        validate = step % self._validate_every == 0 or step == self.trainer.num_steps
        if step % self._log_every == 0 or play or validate:
            self._take_losses()
        if play and not self._play():
            return False
        is_best = self._validate() if validate else False
        if is_best or play or step % self._checkpoint_every == 0:
            self._save(best=is_best)
        self._emit(StepDone)
        return True

    def _end(self, state: EndState, reason: str) -> Ending:
        """Write the last checkpoint. Raises CheckpointError if that fails."""
        trainer, progress = self.trainer, self.progress
        if trainer.step != self._saved_step:
            self._take_losses()
            if not self._save(best=progress.best_step == trainer.step > 0):
                steps = self.checkpoints.steps()
                rest = f"the newest is of step {steps[-1]:,}" if steps else "there is none"
                raise CheckpointError(
                    f"the last checkpoint of trainer {trainer.index} could not be written; {rest} "
                    f"in {self.checkpoints.directory}"
                )
        self.finished = state == "finished"
        self._emit(RunEnded, state=state, reason=reason)
        return Ending(state, reason, trainer.step, progress)

    # when something is due

    @property
    def _early_end(self) -> str:
        return self.progress.early_end(self.judge, self._stopping)

    def _next_step_of_interest(self) -> int:
        step = self.trainer.step
        intervals = (self._log_every, self._validate_every, self._checkpoint_every, self._round_every)
        return min(self.trainer.num_steps, *(step - step % every + every for every in intervals if every))

    @property
    def _round_is_due(self) -> bool:
        """True if a round comes before the next step; at the end of a run there is none."""
        every, step = self._round_every, self.trainer.step
        if not every or step % every or not 0 < step < self.trainer.num_steps:
            return False
        return self.progress.round < step // every

    # what is done

    def _take_losses(self) -> None:
        """Fetch the losses, which waits for the device."""
        trainer = self.trainer
        begin = time.perf_counter()
        losses = trainer.take_losses()
        self._count(0, time.perf_counter() - begin)
        if not losses:
            return
        steps, seconds = self._window
        self._window = (0, 0.0)
        rate = steps * trainer.config.training.batch_size / seconds if seconds else 0.0
        self._emit(LossesTaken, losses=losses, lr=trainer.lr, samples_per_s=rate)

    def _count(self, steps: int, seconds: float) -> None:
        self.progress.train_s += seconds
        self._window = (self._window[0] + steps, self._window[1] + seconds)

    def _play(self) -> bool:
        """Play the round that is due; False if it was interrupted."""
        assert self.tournament is not None
        number = self.trainer.step // self._round_every
        try:
            facts = self.tournament.play(self.trainer, number)
        except RoundInterruptedError:
            return False
        self.progress.round = number
        self.progress.wins += facts.get("kept") == "local"
        self._emit(RoundPlayed, facts=facts)
        return True

    def _validate(self) -> bool:
        """Evaluate the validation split; True if the trainer has never been better."""
        trainer = self.trainer
        metrics = trainer.evaluate(self.validation)
        is_best = self.progress.add_validation(metrics, trainer.step, self.judge, self._stopping)
        self._saved_step = -1
        self._emit(Validated, is_best=is_best)
        return is_best

    def _save(self, *, best: bool) -> bool:
        """Write a checkpoint; False if it could not be written."""
        trainer = self.trainer
        state = {
            "code": code_of(trainer.config.model.name),
            "trainer": trainer.state_dict(),
            "progress": asdict(self.progress),
            "judge": asdict(self.judge),
            "tournament": None if self.tournament is None else self.tournament.state_dict(),
        }
        saved = self.checkpoints.save(state, trainer.step, best=best)
        if self.tournament is not None and trainer.mesh.ranks.is_first:
            self.tournament.after_save(self.progress.round, saved)
        if saved:
            self._saved_step = trainer.step
            self._emit(CheckpointSaved)
        return saved

    def _emit(self, event: type[Event], **facts: Any) -> None:
        """Call the listeners with an event of this moment."""
        if self.listeners:
            progress = replace(self.progress)
            made = event(step=self.trainer.step, epoch=self.trainer.epoch, progress=progress, **facts)
            for listener in self.listeners:
                listener(made)

    # going on with a run

    def resume(self) -> bool:
        """Go to the newest readable checkpoint; False if there is none. Raises CheckpointError."""
        state = self._checkpoint()
        if state is None:
            return False
        trainer = self.trainer
        where = f"the checkpoint of step {state['step']:,} in {self.checkpoints.directory}"
        require_code(trainer.config.model.name, state.get("code", {}), where)
        trainer.load_state_dict(state["trainer"])
        self.progress = LoopProgress(**state["progress"])
        if self.tournament is not None and state.get("tournament") is not None:
            self.tournament.load_state_dict(state["tournament"])
        if trainer.mesh.ranks.is_first and self.progress.best_step == trainer.step:
            self.checkpoints.mark_best(trainer.step)  # a process that was killed may have left it undone
        self._saved_step = trainer.step
        return True

    def _checkpoint(self) -> State | None:
        """The checkpoint that all ranks, and all trainers that depend on each other, go on from."""
        ranks, like = self.trainer.mesh.ranks, {"trainer": self.trainer.state_dict()}
        state = self.checkpoints.newest(like) if ranks.is_first else None
        if self.tournament is not None:
            state = self._agreed(self.tournament, state, like)
        step = ranks.from_first(None if state is None else state["step"])
        return state if ranks.is_first or step is None else self.checkpoints.load(step, like)

    def _agreed(self, tournament: Rounds, state: State | None, like: State) -> State | None:
        """The newest checkpoint, or an older one if another trainer cannot go on from that round."""
        newest = 0 if state is None else int(state["progress"]["round"])
        try:
            number = tournament.agree(self.trainer, newest)
        except RoundInterruptedError:
            return state
        if number == newest or not self.trainer.mesh.ranks.is_first:
            return state
        for step in reversed(self.checkpoints.steps()):
            older = self.checkpoints.load(step, like)
            if older["progress"]["round"] == number:
                self.checkpoints.note(
                    f"going back to step {step:,}, because another trainer has played {number} rounds only"
                )
                return older
        if number == 0:
            return None
        raise CheckpointError(
            f"another trainer goes on after round {number}, and {self.checkpoints.directory} has no checkpoint of it"
        )
