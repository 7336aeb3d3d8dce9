"""Runs a training run with a display, alone or as one process of many, and prints how it ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct

from merlin.base.text import count
from merlin.cli.output import flush, print_json, print_table, remark
from merlin.cli.train_display import choose_train_display, number
from merlin.errors import MerlinError, UsageError
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


class TrainRequest(Struct, frozen=True):
    """A training run as the command line asks for it."""

    config: Path
    words: tuple[str, ...]
    trainer: int | None  # be this trainer alone, in a run whose others are started elsewhere
    under_launcher: bool  # started once per rank by srun, flux run, jsrun or mpirun
    trust_code: bool  # import the model that a run directory names, whatever it is
    as_json: bool

    def load(self) -> ConfigFile | None:
        """The configuration; None if there is no file. Raises ConfigError."""
        path = self.config / CONFIG if self.config.is_dir() else self.config
        return load_config(path, self.words) if path.is_file() else None


def check_only(request: TrainRequest) -> int:
    """Check everything and say what would be trained."""
    prepared = prepare(request.config, request.words, trust_code=request.trust_code)
    facts = prepared.facts
    if request.as_json:
        config, begun = prepared.config.to_json(), prepared.run is not None
        print_json({"valid": True, "config": config, "facts": facts, "begun": begun})
        return 0
    splits = ", ".join(f"{name} {num:,}" for name, num in facts.num_samples.items())
    print(f"{request.config}: valid")
    print(f"data    {facts.data_path} ({splits})")
    known = facts.quantities.inputs
    print(f"inputs  {', '.join(f'{q.name} {q.shape}' if q.shape else q.name for q in known)}")
    print(f"scalars {', '.join(facts.scalars) or 'none'}")
    print(f"images  {', '.join(f'{n} {shape}' for n, shape in facts.images.items()) or 'none'}")
    for name, values in facts.classes.items():
        print(f"classes {name}: {', '.join(map(str, values[:20]))}{', …' if len(values) > 20 else ''}")
    print(f"model   {prepared.config.model.name}, {facts.num_parameters:,} parameters")
    print(f"trainers {prepared.config.tournament.trainers}")
    if prepared.run is not None:
        print(f"resumes {prepared.run.path}")
    return 0


def train_command(request: TrainRequest) -> int:
    """Train; returns the exit code: 0 finished, 1 if a trainer failed, 128 + signal if it was stopped."""
    world = World.of_torchrun(os.environ)
    if world is None and request.under_launcher:
        world = World.of_launcher(os.environ)
    stop = StopRequest()
    if world is not None and world.size > 1:
        return _train_as_rank(request, world, stop)
    return _train_here(request, stop)


def _train_here(request: TrainRequest, stop: StopRequest) -> int:
    """This command is the run: in this process if it takes only one, else in children."""
    num = _num_processes(request)
    prepared = prepare(request.config, request.words, num, trust_code=request.trust_code)
    config = prepared.config.tournament
    _check_trainer(request, config.trainers)
    indices = list(range(config.trainers)) if request.trainer is None else [request.trainer]
    if request.trainer is not None and config.transport == "process_group":
        raise UsageError("--trainer starts one trainer of several that meet through files: transport: files")
    stop.listen()
    run = prepared.begin()
    remark(f"run {run.path}")
    with choose_train_display() as display:
        if len(indices) * config.ranks_per_trainer == 1:
            outcomes = [_train_in_process(prepared, run, indices[0], display, stop)]
        else:
            threads = prepared.config.training.threads or prepared.facts.threads
            outcomes = LocalTrainers(run, prepared.config, display, stop, threads).run(indices)
    return _conclude(request, prepared, run, outcomes, stop)


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
    prepared: Prepared, run: RunDirectory, index: int, display: TrainObserver, stop: StopRequest
) -> TrainerOutcome:
    mesh = Mesh.build(Rendezvous(World()), prepared.config.tournament, index)
    last = _LastReport(display)
    ending = train(run, prepared.config, mesh, last, stop)
    return TrainerOutcome(index, ending.state, last.seen)


class _LastReport:
    """Passes reports on, and remembers the last one."""

    def __init__(self, display: TrainObserver) -> None:
        self._display = display
        self.seen = Report(0)

    def report(self, report: Report) -> None:
        self.seen = report
        self._display.report(report)

    def note(self, note: Note) -> None:
        self._display.note(note)


def _train_as_rank(request: TrainRequest, world: World, stop: StopRequest) -> int:
    """This command is one of several processes that were started together."""
    words = (*request.words, *_ranks_word(request, world))
    try:
        prepared = prepare(request.config, words, world.local_size, trust_code=request.trust_code)
        _check_trainer(request, prepared.config.tournament.trainers)
    except MerlinError as error:
        if world.rank:  # only the first rank prints the problem; all ranks find the same one
            return error.exit_code
        raise
    stop.listen()
    place = Path(prepared.config.directory or prepared.config.output)
    place.mkdir(parents=True, exist_ok=True)
    rendezvous = Rendezvous.join(world, place, os.environ)
    begun = str(_begin_together(prepared, request).path) if world.rank == 0 else None
    run = RunDirectory(Path(rendezvous.from_first("run", begun)))
    if world.rank == 0:
        remark(f"run {run.path}")
    mesh = Mesh.build(rendezvous, prepared.config.tournament, request.trainer)
    with choose_train_display() as display:
        observer = display if mesh.ranks.is_first else Silent()
        ending = train(run, prepared.config, mesh, observer, stop)
    rendezvous.close()
    if ending.state == "finished":
        if world.rank == 0 and (compared := _compared(run, prepared.config)) is not None:
            print(compared.sentence())
        return 0
    if world.rank == 0:
        remark(f"stopped at step {ending.step:,}; resume with: {resume_command(run, prepared.config)}")
    return SIGNAL_EXIT + stop.signal if stop.signal else EXIT_STOPPED


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


def _conclude(
    request: TrainRequest,
    prepared: Prepared,
    run: RunDirectory,
    outcomes: Sequence[TrainerOutcome],
    stop: StopRequest,
) -> int:
    """Print how it ended; returns the exit code."""
    best = publish_best(run, prepared.config)
    failed = [o for o in outcomes if o.outcome == "failed"]
    stopped = [o for o in outcomes if o.outcome == "stopped"]
    code = 1 if failed else SIGNAL_EXIT + stop.signal if stopped and stop.signal else 1 if stopped else 0
    compared = _compared(run, prepared.config) if best is not None and not code else None
    if request.as_json:
        facts = {"run": run.path, "exit_code": code, "trainers": outcomes, "best": best}
        print_json({**facts, "baseline": None if compared is None else compared.to_json()})
    else:
        _show(outcomes, best, run)
        if compared is not None:
            print(compared.sentence())
    flush()
    for outcome in failed:
        remark(f"\ntrainer {outcome.trainer} failed; the end of its log:")
        for line in outcome.log_tail.splitlines():
            remark(f"    {line}")
    if failed or stopped:
        what = f"{count(len(failed), 'trainer')} failed" if failed else f"stopped by {stop.reason}"
        remark(f"{what}; resume with: {resume_command(run, prepared.config)}")
    return code


def _compared(run: RunDirectory, config: TrainConfig) -> Comparison | None:
    """The model compared with baselines; None, with a warning, if they cannot be compared."""
    try:
        return compare_run(run, config)
    except (MerlinError, OSError) as error:
        remark(f"merlin: warning: the model was not compared with baselines: {error}")
        return None


def _show(outcomes: Sequence[TrainerOutcome], best: dict[str, Any] | None, run: RunDirectory) -> None:
    rows = []
    for outcome in outcomes:
        last = outcome.report
        best_at = (number(last.best), f"{last.best_step:,}")
        rows.append((outcome.trainer, outcome.outcome, f"{last.step:,}", *best_at, last.reason))
    columns = ("trainer", "state", "step", "best", "at step", "reason")
    print_table(columns, rows, right=("trainer", "step", "best", "at step"))
    if best is not None:
        metrics = ", ".join(f"{name} {number(value)}" for name, value in best["metrics"].items())
        print(f"\nbest model: trainer {best['trainer']}, step {best['step']:,}: {metrics}")
        print(f"in {run.best / 'model.pt'}")
