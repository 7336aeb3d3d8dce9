"""One process of a run: it finds its place among the others, builds its trainer, and trains to the end.

    python -m merlin.train.process RUN_DIRECTORY [--trainer K]

is what `merlin train` starts for each rank; under torchrun, `merlin train` itself is such a process.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch.utils import deterministic

from merlin.errors import MerlinError, TrainingError
from merlin.train.checkpoint import Checkpoints
from merlin.train.config import TrainConfig
from merlin.train.config_file import load_config
from merlin.train.data import TrainingData
from merlin.train.event_log import EventLog
from merlin.train.events import StopRequest
from merlin.train.loop import Ending, Loop
from merlin.train.metrics_log import MetricsLog
from merlin.train.parallel.mesh import Mesh
from merlin.train.parallel.rendezvous import Rendezvous
from merlin.train.parallel.world import World, choose_device, gpu_id
from merlin.train.prepare import build_trainee, configured_capacity, open_data
from merlin.train.progress import Judge
from merlin.train.reports import LogFile, Note, PipeObserver, Report, Reporter, Silent, TrainObserver
from merlin.train.run_directory import RunDirectory, publish_best
from merlin.train.tensorboard_log import TensorBoardLog
from merlin.train.tournament.exchange import ModelTransport
from merlin.train.tournament.files import FileTransport
from merlin.train.tournament.group import GroupTransport
from merlin.train.tournament.rounds import Rounds
from merlin.train.tournament.timing import rounds_per_checkpoint
from merlin.train.trainer import Trainer, seed_initial_weights
from merlin.train.widths import Widths

EVENTS_FD = "MERLIN_TRAIN_EVENTS"  # the descriptor that reports go to
LOGS: tuple[type[EventLog], ...] = (MetricsLog, TensorBoardLog)  # what keeps the events of a loop
GRACE_S = 30.0  # for a checkpoint, when the process that started this one is gone
EXIT_STOPPED = 75  # as sendmail's EX_TEMPFAIL: start it again


def train(
    run: RunDirectory, config: TrainConfig, mesh: Mesh, observer: TrainObserver, stop: StopRequest
) -> Ending:
    """Train to the end as one rank of one trainer; afterwards `best/` is up to date.

    Raises TrainingError, ShardError or LoaderError when it cannot go on.
    """
    device = set_up_torch(run, config, mesh)
    if not mesh.ranks.is_first:
        with _explaining_memory(config, device), open_loop(run, config, mesh, device, Silent(), stop) as loop:
            return loop.run()
    directory = run.trainer(mesh.trainer)
    with directory.locked():
        log = LogFile(directory.log, observer)
        try:
            log.report(Report(mesh.trainer))
            with _explaining_memory(config, device), open_loop(run, config, mesh, device, log, stop) as loop:
                ending = loop.run()
        except (MerlinError, OSError) as error:
            log.note(Note(mesh.trainer, str(error)))
            raise
        finally:
            log.close()
    publish_best(run, config)
    return ending


def set_up_torch(run: RunDirectory, config: TrainConfig, mesh: Mesh) -> torch.device:
    """Threads, determinism and the device of this process. Raises TrainingError if there is none for it."""
    device = choose_device(config.training.device, mesh.local_rank)
    _check_gpus(mesh, device, config.training.device)
    torch.set_num_threads(config.training.threads or run.facts().threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        if config.training.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if device.type == "cpu" or config.training.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
        deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    return device


def _check_gpus(mesh: Mesh, device: torch.device, wanted: str) -> None:
    """Raise TrainingError on all ranks of a trainer, unless each has a GPU of its own, or none has one."""
    gpus = mesh.ranks.gather(gpu_id(device))
    if not any(gpus) or (all(gpus) and len(set(gpus)) == len(gpus)):
        return
    which = f"trainer {mesh.trainer}: of its {len(gpus)} ranks"
    if not all(gpus):
        raise TrainingError(
            f"{which}, {gpus.count('')} see no GPU; write training.device: cpu, or give them one"
        )
    mend = "lower tournament.ranks_per_trainer, let the launcher give each rank a GPU, or write training.device: cpu"
    if ":" in wanted:
        mend = "write training.device: cuda"
    raise TrainingError(f"{which}, several have the same GPU, and each needs its own: {mend}")


@contextmanager
def open_loop(
    run: RunDirectory,
    config: TrainConfig,
    mesh: Mesh,
    device: torch.device,
    observer: TrainObserver,
    stop: StopRequest,
) -> Iterator[Loop]:
    """The loop of a trainer, at the place of its newest checkpoint."""

    def note(text: str) -> None:
        observer.note(Note(mesh.trainer, text))

    directory = run.trainer(mesh.trainer)
    # trainers that go on together may have to go back to the checkpoint before the last one
    keep = config.training.keep if mesh.leaders is None else max(2, config.training.keep)
    with ExitStack() as stack:
        data = open_data(run, config)
        trainer = _trainer(config, mesh, data, device)
        stack.callback(trainer.close)
        validation = data.validation_loader(mesh, device)
        stack.callback(validation.close)
        tournament = _tournament(run, config, mesh, data, trainer, stop, note)
        checkpoints = Checkpoints(directory.checkpoints, keep, note, mesh.ranks)
        judge = Judge.of(config, trainer.trainee.directions())
        loop = Loop(trainer, validation, judge, checkpoints, stop, tournament)
        if tournament is not None:
            stack.callback(lambda: tournament.close(loop.finished))
        if loop.resume():
            note(f"resumed at step {trainer.step:,} of {trainer.num_steps:,}")
        else:
            trainer.start(data)
        if mesh.ranks.is_first:
            for log_type in LOGS:
                log = log_type(directory.path, trainer.step, note)
                stack.callback(log.close)
                loop.listeners.append(log)
            loop.listeners.append(Reporter(observer, trainer.index, trainer.step, trainer.num_steps))
        # otherwise the garbage collector would now and then look at all that PyTorch has loaded; such a step
        # takes a tenth of a second longer, and other trainers and ranks would wait for it
        gc.freeze()
        stack.callback(gc.unfreeze)
        yield loop


def _trainer(config: TrainConfig, mesh: Mesh, data: TrainingData, device: torch.device) -> Trainer:
    """The trainer before its first step, with its weights as they are drawn."""
    # the mean of models that were drawn differently is no model
    seed_initial_weights(config.seed, 0 if config.merges else mesh.trainer)
    trainee = build_trainee(config, data.shapes)
    loader = data.training_loader(mesh, device)
    # those who wait for each other in every round make as many steps, whatever the size of their shares
    together = config.averages or (config.is_tournament and mesh.leaders is not None)
    per_epoch = data.least_steps() if together else len(loader)
    num_steps = config.training.num_steps(per_epoch)
    widths = None
    if config.mutates_width:
        widths = Widths(configured_capacity(config), partial(build_trainee, config, data.shapes))
    return Trainer(
        trainee, loader, data.shapes, config, num_steps=num_steps, mesh=mesh, device=device, widths=widths
    )


def _tournament(
    run: RunDirectory,
    config: TrainConfig,
    mesh: Mesh,
    data: TrainingData,
    trainer: Trainer,
    stop: StopRequest,
    note: Callable[[str], None],
) -> Rounds | None:
    if not config.is_tournament:
        return None
    transport: ModelTransport | None = None
    if not mesh.ranks.is_first:
        pass  # only the first rank of a trainer meets other trainers
    elif mesh.leaders is not None:
        transport = GroupTransport(mesh.leaders, trainer.device, stop)
    else:
        wanted = config.tournament
        transport = FileTransport(
            run.tournament, mesh.trainer, wanted.trainers, patience=wanted.wait,
            between=rounds_per_checkpoint(config), note=note,
        )  # fmt: skip
    loader = None if config.averages else data.tournament_loader(mesh, trainer.device)
    return Rounds(config, trainer.trainee.directions(), loader, transport, stop)


@contextmanager
def _explaining_memory(config: TrainConfig, device: torch.device) -> Iterator[None]:
    """If memory runs out, raise TrainingError that says what to lower."""
    try:
        yield
    except (RuntimeError, MemoryError, TrainingError) as error:
        # a model that cannot be built
        cause = error.__cause__ if isinstance(error, TrainingError) else error
        text = str(cause)
        if (
            not isinstance(cause, MemoryError | torch.OutOfMemoryError)
            and "can't allocate memory" not in text
        ):
            raise
        training = config.training
        per_rank = training.batch_size // (config.tournament.ranks_per_trainer * training.accumulate)
        narrower = " or tournament.mutation.width" if config.mutates_width else ""
        raise TrainingError(
            f"{device} is out of memory with {per_rank} samples at once in {training.precision}: "
            f"{text.splitlines()[0] if text else 'no more memory'}\n"
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
    observer: TrainObserver = (
        PipeObserver(int(os.environ[EVENTS_FD])) if EVENTS_FD in os.environ else Silent()
    )
    world = World.of_child(os.environ)
    try:
        config = load_config(run.config_path, [f"directory={run.path}"]).config
        rendezvous = Rendezvous.join(world, run.path, os.environ)
        mesh = Mesh.build(rendezvous, config.tournament, trainer)
        ending = train(run, config, mesh, observer, stop)
        rendezvous.close()
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
