"""The training loop: steps, and between them rounds, validations, checkpoints, and the end."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.records import to_plain
from merlin.errors import CheckpointError, TrainingError
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
from merlin.train.tournament.timing import Timing, rounds_per_checkpoint
from merlin.train.trainer import Trainer

if TYPE_CHECKING:
    from merlin.train.loading.loader import ShardLoader


class Ending(Struct, frozen=True):
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
        tournament: Rounds | None,
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
        self._timing = Timing.of(trainer.config, trainer.num_steps) if tournament is not None else None
        self._averages = trainer.config.averages
        self._rounds_per_checkpoint = rounds_per_checkpoint(trainer.config)
        self._window = (0, 0.0)  # steps and seconds since losses were taken
        self._saved_step = -1

    # the way of a run

    def run(self) -> Ending:
        """Train until the run is over, or is asked to stop.

        Raises TrainingError when it cannot go on, or has ended without a best model. The state at the end is in a
        checkpoint.
        """
        trainer = self.trainer
        while (trainer.step < trainer.num_steps or self._round_is_due) and not self._early_end:
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
        if step % self._log_every == 0 or validate or (play and not self._averages):
            self._take_losses()
        if play and not self._play():
            return False
        is_best = self._validate() if validate else False
        if is_best or step % self._checkpoint_every == 0 or (play and self._all_save):
            self._save(best=is_best)
        self._emit(StepDone)
        return True

    def _end(self, state: EndState, reason: str) -> Ending:
        """Write the last checkpoint. Raises CheckpointError if that fails, TrainingError if nothing was learned."""
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
        if self.finished and progress.best is None:
            raise TrainingError(
                f"trainer {trainer.index} has ended at step {trainer.step:,} without a best model: in no validation "
                f"was {self.judge.metric} finite; lower the learning rate, or look for extreme values in the data"
            )
        self._emit(RunEnded, state=state, reason=reason)
        return Ending(state, reason, trainer.step, progress)

    # when something is due

    @property
    def _early_end(self) -> str:
        return self.progress.early_end(self.judge, self._stopping)

    def _next_step_of_interest(self) -> int:
        step = self.trainer.step
        intervals = (self._log_every, self._validate_every, self._checkpoint_every)
        regular = (step - step % every + every for every in intervals)
        rounds = () if self._timing is None else (self._timing.following(self.progress.round_step),)
        return min(self.trainer.num_steps, *regular, *rounds)

    @property
    def _round_is_due(self) -> bool:
        """True if a round comes before the next step."""
        timing, step = self._timing, self.trainer.step
        return timing is not None and timing.following(self.progress.round_step) <= step <= timing.final

    @property
    def _all_save(self) -> bool:
        """True if all trainers write a checkpoint after the round that was played last."""
        return self.progress.common_round == self.progress.round

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
        number = self.progress.round + 1
        try:
            facts = self.tournament.play(self.trainer, number)
        except RoundInterruptedError:
            return False
        progress, step = self.progress, self.trainer.step
        progress.round, progress.round_step = number, step
        if number % self._rounds_per_checkpoint == 0 or step == self.trainer.num_steps:
            progress.common_round = number
        progress.wins += facts.get("kept") == "local"
        if self._is_told(facts):
            self._emit(RoundPlayed, facts={**facts, "values": self.tournament.take_seconds()})
        return True

    def _is_told(self, facts: dict[str, Any]) -> bool:
        """True if a round is reported.

        Frequent rounds in which every trainer gets the mean of all say nothing new; most are not reported.
        """
        others = self.trainer.config.tournament.trainers - 1
        return not self._averages or self._all_save or len(facts["partners"]) < others

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
            "progress": to_plain(self.progress),
            "judge": to_plain(self.judge),
            "tournament": None if self.tournament is None else self.tournament.state_dict(),
        }
        saved = self.checkpoints.save(state, trainer.step, best=best)
        together = trainer.mesh.leaders is not None
        if self.tournament is not None and trainer.mesh.ranks.is_first and (self._all_save or not together):
            self.tournament.after_save(self.progress.round, saved)
        if saved:
            if together and self._all_save and self.progress.round_step == trainer.step:
                self.checkpoints.held = trainer.step
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
        self.progress = _progress(state["progress"], self._timing)
        if state["judge"] != to_plain(self.judge):
            self._change_judge(state["judge"]["metric"])
        self.checkpoints.held = trainer.step if trainer.mesh.leaders is not None else None
        if self.tournament is not None and state.get("tournament") is not None:
            self.tournament.load_state_dict(state["tournament"])
        is_best = self.progress.best is not None and self.progress.best_step == trainer.step
        if trainer.mesh.ranks.is_first and is_best:
            self.checkpoints.mark_best(trainer.step)  # a process that was killed may have left it undone
        self._saved_step = trainer.step
        return True

    def _change_judge(self, before: str) -> None:
        """Values of another metric say nothing about what is better now."""
        self.progress.forget_best()
        self.checkpoints.note(
            f"{self.judge.metric} decides from now on, and no longer {before}: "
            "the best model is that of the validations to come"
        )

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
        progress = LoopProgress() if state is None else _progress(state["progress"], self._timing)
        together = self.trainer.mesh.leaders is not None
        try:
            number = tournament.agree(self.trainer, progress.common_round if together else progress.round)
        except RoundInterruptedError:
            return state
        if number == progress.round or not self.trainer.mesh.ranks.is_first:
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


def _progress(state: State, timing: Timing | None) -> LoopProgress:
    """The progress in a checkpoint. Earlier versions played a round after each interval, and did not say when."""
    number = state["round"]
    usual = {"round_step": number * timing.interval if timing else 0, "common_round": number}
    return LoopProgress(**{**usual, **state})
