"""`merlin train` trains a model on a data set, with one trainer or a tournament of many."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from merlin.cli.lazy import needing_torch
from merlin.cli.options import EXISTING, FOLDER, json_option, trust_code_option


@click.command()
@click.argument("config", type=EXISTING)
@click.argument("words", nargs=-1, metavar="[KEY=VALUE]…")
@click.option(
    "--check", is_flag=True, help="Check configuration, data and model; train nothing, write nothing."
)
@click.option(
    "--trainer",
    type=click.IntRange(min=0),
    metavar="K",
    help="Run only trainer K; start the others elsewhere, with the same directory.",
)
@click.option(
    "--under-launcher",
    is_flag=True,
    help="This command is started once per rank by srun, flux run, jsrun or mpirun; torchrun is noticed anyway.",
)
@click.option(
    "--emit",
    nargs=2,
    type=(click.Choice(("lbann",)), FOLDER),
    metavar="lbann DIR",
    help="Train nothing; write into DIR what LBANN needs to train the same: samples, schemas and a script.",
)
@trust_code_option
@json_option
def train(
    config: Path,
    words: tuple[str, ...],
    check: bool,
    trainer: int | None,
    under_launcher: bool,
    emit: tuple[str, Path] | None,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Train the model that CONFIG describes, on the data set that it names.

    CONFIG is a YAML file, whose values KEY=VALUE words override (training.epochs=20), or a run directory, which is
    resumed. Several trainers run as processes of this machine. Exits with 0 when all trainers finished, 1 if one
    failed, 2 if the configuration is wrong (nothing was written), and 128 + the signal's number if it was stopped, in
    which case the same run can be resumed.
    """
    with needing_torch("training"):
        if emit is not None:
            from merlin.cli.results import emit_command

            emit_command(config, words, emit[1], trust_code, as_json)
            return
        from merlin.cli.training import check_only, train_command
        from merlin.train.whole_run import TrainRequest
    request = TrainRequest(config, words, trainer, under_launcher, trust_code)
    sys.exit((check_only if check else train_command)(request, as_json=as_json))
