"""`merlin evaluate`, `predict` and `export-model`: what becomes of a trained model."""

from __future__ import annotations

from typing import Any

import click

from merlin.cli.lazy import needing_torch
from merlin.cli.options import (
    EXISTING,
    FILE,
    device_option,
    json_option,
    number_option,
    out_option,
    run_argument,
    trust_code_option,
)


@click.command()
@run_argument
@out_option(FILE, "The report [default: RUN/report.html].")
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
def evaluate(**given: Any) -> None:
    """Measure the best model of RUN on samples that it has not seen, and write a report.

    RUN is what `merlin train` has made. Written are RUN/evaluation.json, charts as RUN/plots/*.png, and one page with
    everything in it, to open anywhere and to mail. If several trainers ended with different models, it also measures
    what their spread says of the uncertainty.
    """
    with needing_torch("evaluating a model"):
        from merlin.cli.results import evaluate_run
    evaluate_run(**given)


@click.command()
@run_argument
@click.argument("samples", type=EXISTING)
@out_option(FILE, "File to write: .npz, .csv, .parquet or .h5; CSV has no place for images.", required=True)
@click.option("--fields", metavar="A,B,…", help="Only these scalars and images [default: all].")
@click.option(
    "--uncertainty",
    is_flag=True,
    help="Predict the mean of the models of all trainers, and its standard deviation as <field>_std.",
)
@number_option("--batch-size", "N", "Samples that are computed at once.", default=256, show_default=True)
@device_option
@trust_code_option
@json_option
def predict(**given: Any) -> None:
    """Predict what the simulation would say to every sample of SAMPLES.

    RUN is what `merlin train` has made, or, without --uncertainty, a copy of the directory `best` in it. SAMPLES is a
    .csv, .tsv, .npy, .npz, .parquet or .h5 file with a column for each input of the model, in physical units; further
    columns are left alone. A data set with these will do, too. The predictions are in physical units, and in the order
    of the samples.
    """
    with needing_torch("predicting"):
        from merlin.cli.results import predict_samples
    predict_samples(**given)


@click.command()
@run_argument
@click.option(
    "--to", "format", type=click.Choice(("onnx", "torchscript")), required=True, help="The format to write."
)
@out_option(FILE, "File to write, usually .onnx or .pt.", required=True)
@trust_code_option
@json_option
def export_model(**given: Any) -> None:
    """Write the best model of RUN as ONNX or TorchScript, with the normalisation inside of it.

    The model takes physical inputs (samples, inputs) in float64 and gives physical outputs, each under its name. It is
    compared with the model itself before the file gets its name.
    """
    with needing_torch("exporting a model"):
        from merlin.cli.results import export_run
    export_run(**given)
