"""One process of a run: it finds its seat among the others, builds its trainer, and trains to the end.

    python -m merlin.train.process RUN_DIRECTORY [--trainer K]

is what `merlin train` starts for each rank; under torchrun, `merlin train` itself is such a process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TextIO

import torch
from torch import distributed as dist
from torch._C._distributed_c10d import PrefixStore
from torch.utils import deterministic

from merlin.errors import MerlinError, TrainingError, UsageError
from merlin.train.checkpoint import Checkpoints
from merlin.train.config import DEFAULT_EPOCHS, TrainConfig
from merlin.train.config_file import load_config
from merlin.train.data import TrainingData
from merlin.train.distributed import Circle, Meeting, Ranks, World, choose_device
from merlin.train.events import Note, Observer, PipeObserver, Report, Silent, StopRequest
from merlin.train.loop import Ending, Judge, Loop, Tournament
from merlin.train.metrics_log import MetricsLog
from merlin.train.prepare import build_trainee, configured_capacity, open_data
from merlin.train.run_directory import RunDirectory, publish_best
from merlin.train.tournament.exchange import Transport
from merlin.train.tournament.files import FileTransport
from merlin.train.tournament.group import GroupTransport
from merlin.train.tournament.rounds import Rounds
from merlin.train.trainer import Trainer, seed_initial_weights
from merlin.train.widths import Widths

EVENTS_FD = "MERLIN_TRAIN_EVENTS"  # the descriptor that reports go to
GRACE_S = 30.0  # for a checkpoint, when the process that started this one is gone
EXIT_STOPPED = 75  # as sendmail's EX_TEMPFAIL: start it again


@dataclass(frozen=True)
class Seat:
    """Which trainer this process works for, and as which of its ranks."""

    trainer: int
    ranks: Ranks
    local_rank: int
    circle: Circle | None = None  # of the trainers, where they are one world

    @staticmethod
    def take(meeting: Meeting, config: TrainConfig, trainer: int | None = None) -> Seat:
        """By the rank in the world, or as a rank of the one `trainer` that this world is; sets up process groups.

        Raises UsageError if the number of processes does not fit.
        """
        world, per_trainer = meeting.world, config.tournament.ranks_per_trainer
        num = config.tournament.trainers if trainer is None else 1
        if world.size != num * per_trainer:
            raise UsageError(
                f"{world.size} processes were started, and {num} trainers of {per_trainer} ranks need "
                f"{num * per_trainer}: change tournament.trainers or tournament.ranks_per_trainer"
            )
        index, rank = divmod(world.rank, per_trainer)
        number = index if trainer is None else trainer
        if config.tournament.transport == "process_group" and num > 1:
            meeting.make_group("world", world.rank, world.size)
            groups = [dist.new_group(range(k * per_trainer, (k + 1) * per_trainer)) for k in range(num)]
            firsts = dist.new_group(range(0, world.size, per_trainer))
            circle = Circle(index, num, per_trainer, PrefixStore("tournament", meeting.store), firsts)
            return Seat(number, Ranks(rank, per_trainer, groups[index]), world.local_rank, circle)
        if per_trainer > 1:
            meeting.make_group(f"trainer{number}", rank, per_trainer)
        return Seat(number, Ranks(rank, per_trainer), world.local_rank)


class LogFile:
    """What a person reads about one trainer; passes everything on to another observer."""

    def __init__(self, path: Path, further: Observer) -> None:
        self._file: TextIO | None = None
        self._further = further
        self._written: tuple[object, ...] = ()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8")
        except OSError as error:
            further.note(Note(0, f"{path} cannot be written: {error.strerror}"))

    def report(self, report: Report) -> None:
        self._further.report(report)
        now = (report.state, dict(report.metrics), report.round)
        if now == self._written:
            return
        self._written = now
        numbers = {**report.losses, **{f"validation {k}": v for k, v in report.metrics.items()}}
        shown = [f"{name} {value:.5g}" for name, value in numbers.items()]
        shown += [f"round {report.round}"] if report.round else []
        shown += [f"{report.state}: {report.reason}"] if report.reason else []
        pace = f"{report.samples_per_s:,.0f} samples/s"
        self._write("  ".join([f"step {report.step:,} of {report.num_steps:,}", pace, *shown]))

    def note(self, note: Note) -> None:
        self._write(note.text)
        self._further.note(note)

    def _write(self, text: str) -> None:
        if self._file is not None:
            try:
                self._file.write(f"{datetime.now():%Y-%m-%d %H:%M:%S}  {text}\n")
                self._file.flush()
            except OSError:
                self._file = None  # a full disk; displays are told all the same

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def train(
    run: RunDirectory, config: TrainConfig, seat: Seat, observer: Observer, stop: StopRequest
) -> Ending:
    """Train to the end as one rank of one trainer; afterwards `best/` is up to date.

    Raises TrainingError, ShardError or LoaderError when it cannot go on.
    """
    device = set_up_torch(run, config, seat)
    if not seat.ranks.is_first:
        with _explaining_memory(config, device), open_loop(run, config, seat, device, Silent(), stop) as loop:
            return loop.run()
    directory = run.trainer(seat.trainer)
    with directory.locked():
        told = LogFile(directory.log, observer)
        try:
            told.report(Report(seat.trainer))
            with _explaining_memory(config, device), open_loop(run, config, seat, device, told, stop) as loop:
                ending = loop.run()
        except (MerlinError, OSError) as error:
            told.note(Note(seat.trainer, str(error)))
            raise
        finally:
            told.close()
    publish_best(run, config)
    return ending


def set_up_torch(run: RunDirectory, config: TrainConfig, seat: Seat) -> torch.device:
    """Threads, determinism and the device of this process. Raises TrainingError if there is no such device."""
    device = choose_device(config.training.device, seat.local_rank)
    torch.set_num_threads(config.training.threads or run.facts().threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if config.training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if device.type == "cpu" or config.training.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return device


@contextmanager
def open_loop(
    run: RunDirectory,
    config: TrainConfig,
    seat: Seat,
    device: torch.device,
    told: Observer,
    stop: StopRequest,
) -> Iterator[Loop]:
    """The loop of a trainer, where its newest checkpoint is."""
    data = open_data(run, config)
    ranks = seat.ranks
    trainer = _trainer(config, seat, data, device)
    validation = data.validation_loader(ranks.rank, ranks.size, device)
    directory = run.trainer(seat.trainer)

    def note(text: str) -> None:
        told.note(Note(seat.trainer, text))

    kept = config.training.keep
    keep = kept if seat.circle is None else max(2, kept)  # all go on from the same round
    checkpoints = Checkpoints(directory.checkpoints, keep, note)
    tournament = _tournament(run, config, seat, data, trainer, stop, note)
    judge = Judge.of(config, trainer.trainee.directions())
    loop = Loop(trainer, validation, judge, checkpoints, observer=told, stop=stop, tournament=tournament)
    try:
        if loop.resume():
            note(f"resumed at step {trainer.step:,} of {trainer.num_steps:,}")
        else:
            trainer.start(data.normaliser)
        if ranks.is_first:
            loop.log = MetricsLog(directory.path, trainer.step, note)
        yield loop
    finally:
        if loop.log is not None:
            loop.log.close()
        if tournament is not None:
            tournament.close(loop.finished)
        trainer.close()
        validation.close()


def _trainer(config: TrainConfig, seat: Seat, data: TrainingData, device: torch.device) -> Trainer:
    """As its weights are drawn."""
    seed_initial_weights(config.seed, seat.trainer)
    trainee = build_trainee(config, data.shapes)
    loader = data.training_loader(seat.trainer, seat.ranks.rank, seat.ranks.size, device)
    training = config.training
    num_steps = training.steps or (training.epochs or DEFAULT_EPOCHS) * len(loader)
    widths = None
    if config.mutates_width:
        widths = Widths(configured_capacity(config), partial(build_trainee, config, data.shapes))
    return Trainer(
        trainee, loader, config, num_steps=num_steps, index=seat.trainer, ranks=seat.ranks, device=device,
        widths=widths,
    )  # fmt: skip


def _tournament(
    run: RunDirectory,
    config: TrainConfig,
    seat: Seat,
    data: TrainingData,
    trainer: Trainer,
    stop: StopRequest,
    note: Callable[[str], None],
) -> Tournament | None:
    if not config.is_tournament:
        return None
    transport: Transport | None = None
    if seat.circle is not None:
        transport = GroupTransport(seat.circle, trainer.device, stop) if seat.ranks.is_first else None
    elif seat.ranks.is_first:
        wanted = config.tournament
        transport = FileTransport(
            run.tournament, seat.trainer, wanted.trainers, patience=wanted.wait, note=note
        )
    loader = data.tournament_loader(seat.trainer, seat.ranks.rank, seat.ranks.size, trainer.device)
    return Rounds(config, trainer.trainee.directions(), loader, transport, stop=stop)


@contextmanager
def _explaining_memory(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """What to lower where memory runs out."""
    try:
        yield
    except (RuntimeError, MemoryError, TrainingError) as error:
        # a model that cannot be built
        reason = error.__cause__ if isinstance(error, TrainingError) else error
        told = str(reason)
        if (
            not isinstance(reason, MemoryError | torch.OutOfMemoryError)
            and "can't allocate memory" not in told
        ):
            raise
        training = config.training
        per_rank = training.batch_size // (config.tournament.ranks_per_trainer * training.accumulate)
        narrower = " or tournament.mutation.width" if config.mutates_width else ""
        raise TrainingError(
            f"{device} is out of memory with {per_rank} samples at once in {training.precision}: "
            f"{told.splitlines()[0] if told else 'no more memory'}\n"
            f"  Raise training.accumulate (the same gradients in {2 * training.accumulate} parts or more), "
            f"lower training.batch_size, set training.precision to bf16, or make the model{narrower} smaller; "
            "the newest checkpoint is kept, and these may be changed in a new run."
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """A rank that another process has started; what it prints goes to its trainer's log."""
    args = list(sys.argv[1:] if argv is None else argv)
    run = RunDirectory(Path(args[0]))
    trainer = int(args[2]) if args[1:2] == ["--trainer"] else None
    stop = StopRequest()
    stop.listen()
    _leave_with_parent(stop)
    observer: Observer = PipeObserver(int(os.environ[EVENTS_FD])) if EVENTS_FD in os.environ else Silent()
    world = World.of_torchrun(os.environ) or World()
    try:
        config = load_config(run.config_path, [f"directory={run.path}"]).config
        meeting = Meeting.join(world, run.path, os.environ)
        ending = train(run, config, Seat.take(meeting, config, trainer), observer, stop)
        meeting.close()
    except MerlinError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0 if ending.state == "finished" else EXIT_STOPPED


def _leave_with_parent(stop: StopRequest) -> None:
    """Stop when standard input ends, which the parent holds open; end by force if that takes long."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        stop.ask("the process that started it is gone")
        threading.Event().wait(GRACE_S)
        os._exit(EXIT_STOPPED)

    threading.Thread(target=watch, name="merlin-parent", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
