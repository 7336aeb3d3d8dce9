"""A training run from its configuration to its end: in this process, in children, or as one rank among others."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from msgspec import Struct

from merlin.errors import MerlinError, TrainingError, UsageError
from merlin.train.config import TrainConfig
from merlin.train.config_file import ConfigFile, load_config
from merlin.train.events import StopRequest
from merlin.train.launch import LocalTrainers, TrainerOutcome
from merlin.train.parallel.mesh import Mesh
from merlin.train.parallel.rendezvous import Rendezvous
from merlin.train.parallel.world import World
from merlin.train.prepare import Prepared, prepare
from merlin.train.process import EXIT_STOPPED, train
from merlin.train.reports import Note, Report, Silent, TrainObserver
from merlin.train.results.baseline import Comparison, compare_run
from merlin.train.run_directory import RunDirectory, publish_best, resume_command
from merlin.train.run_paths import CONFIG
from merlin.train.tournament.presence import announce, presence_directory

SIGNAL_EXIT = 128

OnBegun = Callable[[RunDirectory, Prepared], None]  # called once, when the run directory is there
Watch = Callable[[], AbstractContextManager[TrainObserver]]  # who watches the trainers, as long as these run


class TrainRequest(Struct, frozen=True):
    """A training run as the user asks for it."""

    config: Path
    words: tuple[str, ...] = ()
    trainer: int | None = None  # be this trainer alone, in a run whose others are started elsewhere
    under_launcher: bool = False  # started once per rank by srun, flux run, jsrun or mpirun
    trust_code: bool = False  # import the model that a run directory names, whatever it is

    def load(self) -> ConfigFile | None:
        """The configuration; None if there is no file. Raises ConfigError."""
        path = self.config / CONFIG if self.config.is_dir() else self.config
        return load_config(path, self.words) if path.is_file() else None

    def world(self, env: Mapping[str, str]) -> World | None:
        """The processes that were started together with this one; None if this one is alone."""
        world = World.of_torchrun(env)
        if world is None and self.under_launcher:
            world = World.of_launcher(env)
        return world if world is not None and world.size > 1 else None


class BaselineCheck(Struct, frozen=True):
    """The best model beside baselines; neither of both if there is nothing to compare."""

    comparison: Comparison | None = None
    trouble: str = ""  # why they cannot be compared


class RunEnd(Struct, frozen=True, kw_only=True):
    """How a run ended whose trainers this process has started."""

    run: Path
    exit_code: int  # 0 finished, 1 if a trainer failed, 128 + signal if it was stopped
    trainers: tuple[TrainerOutcome, ...]
    best: dict[str, Any] | None  # of all trainers; None if none was validated
    baselines: BaselineCheck
    stopped_by: str
    resume: str  # the command that goes on

    def of(self, outcome: str) -> list[TrainerOutcome]:
        """The trainers that ended so."""
        return [each for each in self.trainers if each.outcome == outcome]


class RankEnd(Struct, frozen=True, kw_only=True):
    """How a run ended, as the first of the processes that were started together tells it; the others say nothing."""

    exit_code: int
    is_first: bool = False
    step: int = 0
    baselines: BaselineCheck = BaselineCheck()
    resume: str = ""  # the command that goes on; "" if the run is finished


def train_here(request: TrainRequest, stop: StopRequest, on_begun: OnBegun, watch: Watch) -> RunEnd:
    """Train in this process if the run takes only one, else in children. Raises as `prepare` and `train`."""
    num = _num_processes(request)
    prepared = prepare(request.config, request.words, num, trust_code=request.trust_code)
    config = prepared.config.tournament
    _check_trainer(request, config.trainers)
    indices = list(range(config.trainers)) if request.trainer is None else [request.trainer]
    if request.trainer is not None and config.transport == "process_group":
        raise UsageError("--trainer starts one trainer of several that meet through files: transport: files")
    stop.listen()
    run = prepared.begin()
    on_begun(run, prepared)
    with watch() as observer:
        if len(indices) * config.ranks_per_trainer == 1:
            outcomes = [_train_in_process(prepared, run, indices[0], observer, stop)]
        else:
            threads = prepared.config.training.threads or prepared.facts.threads
            outcomes = LocalTrainers(run, prepared.config, observer, stop, threads).run(indices)
    return _end(run, prepared.config, outcomes, stop)


def _num_processes(request: TrainRequest) -> int:
    """Processes on this machine, as far as the configuration can be read."""
    file = request.load()
    if file is None:
        return 1
    config = file.config.tournament
    return config.ranks_per_trainer * (config.trainers if request.trainer is None else 1)


def _check_trainer(request: TrainRequest, num: int) -> None:
    if request.trainer is not None and request.trainer >= num:
        raise UsageError(f"--trainer {request.trainer}: there are {num} trainers, numbered from 0")


def _train_in_process(
    prepared: Prepared, run: RunDirectory, index: int, observer: TrainObserver, stop: StopRequest
) -> TrainerOutcome:
    mesh = Mesh.build(Rendezvous(World()), prepared.config.tournament, index)
    last = _LastReport(observer)
    ending = train(run, prepared.config, mesh, last, stop)
    return TrainerOutcome(index, ending.state, last.seen)


class _LastReport:
    """Passes reports on, and remembers the last one."""

    def __init__(self, further: TrainObserver) -> None:
        self._further = further
        self.seen = Report(0)

    def report(self, report: Report) -> None:
        self.seen = report
        self._further.report(report)

    def note(self, note: Note) -> None:
        self._further.note(note)


def _end(
    run: RunDirectory, config: TrainConfig, outcomes: Sequence[TrainerOutcome], stop: StopRequest
) -> RunEnd:
    best = publish_best(run, config)
    code = _exit_code({each.outcome for each in outcomes}, stop)
    return RunEnd(
        run=run.path,
        exit_code=code,
        trainers=tuple(outcomes),
        best=best,
        baselines=check_against_baselines(run, config) if best is not None and not code else BaselineCheck(),
        stopped_by=stop.reason,
        resume=resume_command(run, config),
    )


def _exit_code(outcomes: Collection[str], stop: StopRequest) -> int:
    if "failed" in outcomes or "stopped" not in outcomes:
        return int("failed" in outcomes)
    return SIGNAL_EXIT + stop.signal if stop.signal else 1


def check_against_baselines(run: RunDirectory, config: TrainConfig) -> BaselineCheck:
    """Compare the best model of a run with baselines."""
    try:
        return BaselineCheck(compare_run(run, config))
    except (MerlinError, OSError) as error:
        return BaselineCheck(trouble=str(error) or type(error).__name__)


def train_as_rank(
    request: TrainRequest, world: World, stop: StopRequest, on_begun: OnBegun, watch: Watch
) -> RankEnd:
    """Train as one of several processes that were started together; the first rank of each trainer is watched.

    Raises as `prepare` and `train`; of what is wrong with the configuration, only the first one says more than a line.
    """
    words = (*request.words, *_ranks_word(request, world))
    try:
        prepared = prepare(request.config, words, world.local_size, trust_code=request.trust_code)
        _check_trainer(request, prepared.config.tournament.trainers)
    except MerlinError as error:
        if world.rank:
            raise _of_rank(error, world) from error
        raise
    stop.listen()
    config = prepared.config
    place = Path(config.directory or config.output)
    place.mkdir(parents=True, exist_ok=True)
    rendezvous = Rendezvous.join(world, place, os.environ)
    run_path = str(_begin_together(prepared, request).path) if world.rank == 0 else None
    run = RunDirectory(Path(rendezvous.from_first("run", run_path)))
    if world.rank == 0:
        on_begun(run, prepared)
    mesh = Mesh.build(rendezvous, config.tournament, request.trainer)
    with watch() as observer:
        ending = train(run, config, mesh, observer if mesh.ranks.is_first else Silent(), stop)
    rendezvous.close()
    is_first, is_finished = world.rank == 0, ending.state == "finished"
    code = 0 if is_finished else SIGNAL_EXIT + stop.signal if stop.signal else EXIT_STOPPED
    return RankEnd(
        exit_code=code,
        is_first=is_first,
        step=ending.step,
        baselines=check_against_baselines(run, config) if is_first and is_finished else BaselineCheck(),
        resume="" if is_finished else resume_command(run, config),
    )


def _of_rank(error: MerlinError, world: World) -> MerlinError:
    """The error of one rank in a line, since often all ranks have the same; sometimes it is this one's alone."""
    first, _, _ = str(error).partition("\n")
    text = f"rank {world.rank} of {world.size} on {socket.gethostname()}: {first}"
    return UsageError(text) if error.exit_code == UsageError.exit_code else TrainingError(text)


def _begin_together(prepared: Prepared, request: TrainRequest) -> RunDirectory:
    """Begin the run, and announce the trainers of this world to each other before any of them starts."""
    run, config = prepared.begin(), prepared.config
    if config.is_tournament and config.tournament.transport == "files" and request.trainer is None:
        announce(presence_directory(run.tournament), range(config.tournament.trainers))
    return run


def _ranks_word(request: TrainRequest, world: World) -> tuple[str, ...]:
    """Ranks per trainer as the number of processes wants it, unless the configuration says it."""
    try:
        file = request.load()
    except MerlinError:
        file = None  # `prepare` finds and reports it again
    if file is None:
        return ()
    given = "ranks_per_trainer" in file.tree.get("tournament").mapping and not request.config.is_dir()
    num = file.config.tournament.trainers if request.trainer is None else 1
    if given or world.size % num:
        return ()
    return (f"tournament.ranks_per_trainer={world.size // num}",)
