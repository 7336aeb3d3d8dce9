"""Runs a training run with a display, alone or as one process of many, and prints how it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.base.text import count
from merlin.cli.output import flush, print_json, print_table
from merlin.cli.train_display import choose_train_display, number
from merlin.errors import MerlinError, UsageError

if TYPE_CHECKING:
    from merlin.train.events import StopRequest
    from merlin.train.launch import TrainerOutcome
    from merlin.train.parallel.world import World
    from merlin.train.prepare import Prepared
    from merlin.train.run_directory import RunDirectory

SIGNAL_EXIT = 128


@dataclass(frozen=True)
class TrainRequest:
    """What the command line says."""

    config: Path
    words: tuple[str, ...]
    trainer: int | None  # be this trainer alone, in a run whose others are started elsewhere
    under_launcher: bool  # started once per rank by srun, flux run, jsrun or mpirun
    trust_code: bool  # import the model that a run directory names, whatever it is
    as_json: bool


def check_only(request: TrainRequest) -> int:
    """Check everything and say what would be trained."""
    from merlin.train.prepare import prepare

    prepared = prepare(request.config, request.words, trust_code=request.trust_code)
    facts = prepared.facts
    report = {
        "valid": True,
        "config": prepared.config.to_json(),
        "facts": facts,
        "begun": prepared.run is not None,
    }
    if request.as_json:
        print_json(report)
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
    from merlin.train.events import StopRequest
    from merlin.train.parallel.world import World

    world = World.of_torchrun(os.environ)
    if world is None and request.under_launcher:
        world = World.of_launcher(os.environ)
    stop = StopRequest()
    if world is not None and world.size > 1:
        return _train_as_rank(request, world, stop)
    return _train_here(request, stop)


def _train_here(request: TrainRequest, stop: StopRequest) -> int:
    """This command is the run: in this process if it takes only one, else in children."""
    from merlin.train.prepare import prepare

    num = _num_processes(request)
    prepared = prepare(request.config, request.words, num, trust_code=request.trust_code)
    config = prepared.config.tournament
    _check_trainer(request, config.trainers)
    indices = list(range(config.trainers)) if request.trainer is None else [request.trainer]
    if request.trainer is not None and config.transport == "process_group":
        raise UsageError("--trainer starts one trainer of several that meet through files: transport: files")
    stop.listen()
    run = prepared.begin()
    print(f"run {run.path}", file=sys.stderr, flush=True)
    with choose_train_display() as display:
        if len(indices) * config.ranks_per_trainer == 1:
            outcomes = [_train_in_process(prepared, run, indices[0], display, stop)]
        else:
            from merlin.train.launch import LocalTrainers

            threads = prepared.config.training.threads or prepared.facts.threads
            outcomes = LocalTrainers(run, prepared.config, display, stop, threads).run(indices)
    return _conclude(request, prepared, run, outcomes, stop)


def _num_processes(request: TrainRequest) -> int:
    """Processes on this machine, as far as the configuration can be read."""
    from merlin.train.config_file import load_config
    from merlin.train.run_directory import CONFIG

    path = request.config / CONFIG if request.config.is_dir() else request.config
    if not path.is_file():
        return 1
    config = load_config(path, request.words).config.tournament
    return config.ranks_per_trainer * (config.trainers if request.trainer is None else 1)


def _check_trainer(request: TrainRequest, num: int) -> None:
    if request.trainer is not None and request.trainer >= num:
        raise UsageError(f"--trainer {request.trainer}: there are {num} trainers, numbered from 0")


def _train_in_process(
    prepared: Prepared, run: RunDirectory, index: int, display: Any, stop: StopRequest
) -> TrainerOutcome:
    from merlin.train.launch import TrainerOutcome
    from merlin.train.parallel.mesh import Mesh
    from merlin.train.parallel.rendezvous import Rendezvous
    from merlin.train.parallel.world import World
    from merlin.train.process import train

    mesh = Mesh.build(Rendezvous(World()), prepared.config.tournament, index)
    last = _Last(display)
    ending = train(run, prepared.config, mesh, last, stop)
    return TrainerOutcome(index, ending.state, last.seen)


class _Last:
    """Passes reports on, and remembers the last one."""

    def __init__(self, display: Any) -> None:
        from merlin.train.reports import Report

        self._display = display
        self.seen = Report(0)

    def report(self, report: Any) -> None:
        self.seen = report
        self._display.report(report)

    def note(self, note: Any) -> None:
        self._display.note(note)


def _train_as_rank(request: TrainRequest, world: World, stop: StopRequest) -> int:
    """This command is one of several processes that were started together."""
    from merlin.train.parallel.mesh import Mesh
    from merlin.train.parallel.rendezvous import Rendezvous
    from merlin.train.prepare import prepare
    from merlin.train.process import EXIT_STOPPED, train
    from merlin.train.reports import Silent
    from merlin.train.run_directory import RunDirectory, resume_command

    words = (*request.words, *_ranks_word(request, world))
    try:
        prepared = prepare(request.config, words, world.local_size, trust_code=request.trust_code)
        _check_trainer(request, prepared.config.tournament.trainers)
    except MerlinError as error:
        if world.rank:  # the first rank says it; all find the same
            return error.exit_code
        raise
    stop.listen()
    place = Path(prepared.config.directory or prepared.config.output)
    place.mkdir(parents=True, exist_ok=True)
    rendezvous = Rendezvous.join(world, place, os.environ)
    begun = str(_begin_together(prepared, request).path) if world.rank == 0 else None
    run = RunDirectory(Path(rendezvous.from_first("run", begun)))
    if world.rank == 0:
        print(f"run {run.path}", file=sys.stderr, flush=True)
    mesh = Mesh.build(rendezvous, prepared.config.tournament, request.trainer)
    with choose_train_display() as display:
        observer = display if mesh.ranks.is_first else Silent()
        ending = train(run, prepared.config, mesh, observer, stop)
    rendezvous.close()
    if ending.state == "finished":
        return 0
    if world.rank == 0:
        print(
            f"stopped at step {ending.step:,}; resume with: {resume_command(run, prepared.config)}",
            file=sys.stderr,
        )
    return SIGNAL_EXIT + stop.signal if stop.signal else EXIT_STOPPED


def _begin_together(prepared: Prepared, request: TrainRequest) -> RunDirectory:
    """Begin the run, and tell the trainers that this world has of each other before one of them is fast."""
    from merlin.train.tournament.presence import announce, presence_directory

    run, config = prepared.begin(), prepared.config
    if config.is_tournament and config.tournament.transport == "files" and request.trainer is None:
        announce(presence_directory(run.tournament), range(config.tournament.trainers))
    return run


def _ranks_word(request: TrainRequest, world: World) -> tuple[str, ...]:
    """Ranks per trainer as the number of processes wants it, unless the configuration says it."""
    from merlin.train.config_file import load_config
    from merlin.train.run_directory import CONFIG

    path = request.config / CONFIG if request.config.is_dir() else request.config
    try:
        file = load_config(path, request.words)
    except MerlinError:
        return ()  # found again, and told
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
    from merlin.train.run_directory import publish_best, resume_command

    best = publish_best(run, prepared.config)
    failed = [o for o in outcomes if o.outcome == "failed"]
    stopped = [o for o in outcomes if o.outcome == "stopped"]
    code = 1 if failed else SIGNAL_EXIT + stop.signal if stopped and stop.signal else 1 if stopped else 0
    if request.as_json:
        print_json({"run": run.path, "exit_code": code, "trainers": outcomes, "best": best})
    else:
        _show(outcomes, best, run)
    flush()
    for outcome in failed:
        print(f"\ntrainer {outcome.trainer} failed; the end of its log:", file=sys.stderr)
        for line in outcome.log_tail.splitlines():
            print(f"    {line}", file=sys.stderr)
    if failed or stopped:
        what = f"{count(len(failed), 'trainer')} failed" if failed else f"stopped by {stop.reason}"
        print(f"{what}; resume with: {resume_command(run, prepared.config)}", file=sys.stderr)
    return code


def _show(outcomes: Sequence[TrainerOutcome], best: dict[str, Any] | None, run: RunDirectory) -> None:
    rows = [
        [
            o.trainer,
            o.outcome,
            f"{o.report.step:,}",
            number(o.report.best),
            f"{o.report.best_step:,}",
            o.report.reason,
        ]
        for o in outcomes
    ]
    columns = ("trainer", "state", "step", "best", "at step", "reason")
    print_table(columns, rows, right=("trainer", "step", "best", "at step"))
    if best is not None:
        metrics = ", ".join(f"{name} {number(value)}" for name, value in best["metrics"].items())
        print(f"\nbest model: trainer {best['trainer']}, step {best['step']:,}: {metrics}")
        print(f"in {run.best / 'model.pt'}")
