"""`merlin evaluate`: held-out errors of a trained model, and its report."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.options import (
    EXISTING,
    FILE,
    device_option,
    json_option,
    run_argument,
    trust_code_option,
)


@click.command()
@run_argument
@click.option("-o", "--out", type=FILE, metavar="FILE", help="The report [default: RUN/report.html].")
@click.option(
    "--split", metavar="NAME", help="Samples to evaluate on, or all [default: test, else validation]."
)
@click.option(
    "--data",
    type=EXISTING,
    metavar="PATH",
    help="Another data set, or the same one where it lies now [default: the run's].",
)
@device_option
@trust_code_option
@json_option
def evaluate(
    run: Path,
    out: Path | None,
    split: str | None,
    data: Path | None,
    device: str,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Measure the best model of RUN on samples that it has not seen, and write a report.

    RUN is what `merlin train` has made. Written are RUN/evaluation.json, charts as RUN/plots/*.png, and one page with
    everything in it, to open anywhere and to mail.
    """
    from merlin.cli.results import TrainedRun, evaluate_command

    evaluate_command(TrainedRun(run, device, trust_code), out, split, data, as_json)
