"""Shows a training run with a display, and prints how it ended."""

from __future__ import annotations

import os

from merlin.base.text import count, some_of
from merlin.cli.output import flush, print_json, print_table, remark, warn
from merlin.cli.train_display import choose_train_display, number
from merlin.train.events import StopRequest
from merlin.train.prepare import Prepared, prepare
from merlin.train.run_directory import RunDirectory
from merlin.train.whole_run import BaselineCheck, RankEnd, RunEnd, TrainRequest, train_as_rank, train_here


def check_only(request: TrainRequest, *, as_json: bool) -> int:
    """Check everything and say what would be trained."""
    prepared = prepare(request.config, request.words, trust_code=request.trust_code)
    facts = prepared.facts
    if as_json:
        config, begun = prepared.config.to_json(), prepared.run is not None
        found = {"valid": True, "config": config, "facts": facts, "begun": begun}
        print_json({**found, "diagnostics": prepared.warnings})
        return 0
    warn(prepared.warnings)
    splits = ", ".join(f"{name} {num:,}" for name, num in facts.num_samples.items())
    print(f"{request.config}: valid")
    print(f"data    {facts.data_path} ({splits})")
    known = facts.quantities.inputs
    print(f"inputs  {', '.join(f'{q.name} {q.shape}' if q.shape else q.name for q in known)}")
    print(f"scalars {', '.join(facts.scalars) or 'none'}")
    print(f"images  {', '.join(f'{n} {shape}' for n, shape in facts.images.items()) or 'none'}")
    for name, values in facts.classes.items():
        print(f"classes {name}: {some_of(values, 20)}")
    print(f"model   {prepared.config.model.name}, {facts.num_parameters:,} parameters")
    print(f"trainers {prepared.config.tournament.trainers}")
    if prepared.run is not None:
        print(f"resumes {prepared.run.path}")
    return 0


def train_command(request: TrainRequest, *, as_json: bool) -> int:
    """Train; returns the exit code: 0 finished, 1 if a trainer failed, 128 + signal if it was stopped."""
    stop = StopRequest()
    if (world := request.world(os.environ)) is not None:
        return _show_rank(train_as_rank(request, world, stop, _say_begun, choose_train_display))
    return _conclude(train_here(request, stop, _say_begun, choose_train_display), as_json=as_json)


def _say_begun(run: RunDirectory, prepared: Prepared) -> None:
    warn(prepared.warnings)
    remark(f"run {run.path}")


def _show_rank(end: RankEnd) -> int:
    """Print how a run of several processes ended, in the first of them; returns the exit code."""
    if end.is_first:
        _warn_of(end.baselines)
        if end.baselines.comparison is not None:
            print(end.baselines.comparison.sentence())
        if end.resume:
            remark(f"stopped at step {end.step:,}; resume with: {end.resume}")
    return end.exit_code


def _conclude(end: RunEnd, *, as_json: bool) -> int:
    """Print how a run ended; returns the exit code."""
    _warn_of(end.baselines)
    compared = end.baselines.comparison
    if as_json:
        facts = {"run": end.run, "exit_code": end.exit_code, "trainers": end.trainers, "best": end.best}
        print_json({**facts, "baseline": None if compared is None else compared.to_json()})
    else:
        _show(end)
        if compared is not None:
            print(compared.sentence())
    flush()
    failed = end.of("failed")
    for outcome in failed:
        remark(f"\ntrainer {outcome.trainer} failed; the end of its log:")
        for line in outcome.log_tail.splitlines():
            remark(f"    {line}")
    if failed or end.of("stopped"):
        what = f"{count(len(failed), 'trainer')} failed" if failed else f"stopped by {end.stopped_by}"
        remark(f"{what}; resume with: {end.resume}")
    return end.exit_code


def _warn_of(baselines: BaselineCheck) -> None:
    if baselines.trouble:
        remark(f"merlin: warning: the model was not compared with baselines: {baselines.trouble}")


def _show(end: RunEnd) -> None:
    rows = []
    for outcome in end.trainers:
        last = outcome.report
        best_at = (number(last.best), f"{last.best_step:,}")
        rows.append((outcome.trainer, outcome.outcome, f"{last.step:,}", *best_at, last.reason))
    columns = ("trainer", "state", "step", "best", "at step", "reason")
    print_table(columns, rows, right=("trainer", "step", "best", "at step"))
    if (best := end.best) is not None:
        metrics = ", ".join(f"{name} {number(value)}" for name, value in best["metrics"].items())
        print(f"\nbest model: trainer {best['trainer']}, step {best['step']:,}: {metrics}")
        print(f"in {RunDirectory(end.run).best / 'model.pt'}")
