"""`merlin predict`: ask a trained model."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.options import (
    AT_LEAST_ONE,
    EXISTING,
    FILE,
    device_option,
    json_option,
    run_argument,
    split_names,
    trust_code_option,
)


@click.command()
@run_argument
@click.argument("samples", type=EXISTING)
@click.option(
    "-o",
    "--out",
    type=FILE,
    required=True,
    metavar="FILE",
    help="File to write: .npz, .csv, .parquet or .h5; CSV has no place for images.",
)
@click.option("--fields", metavar="A,B,…", help="Only these scalars and images [default: all].")
@click.option(
    "--batch-size",
    type=AT_LEAST_ONE,
    default=256,
    show_default=True,
    metavar="N",
    help="Samples that are computed at once.",
)
@device_option
@trust_code_option
@json_option
def predict(
    run: Path,
    samples: Path,
    out: Path,
    fields: str | None,
    batch_size: int,
    device: str,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Predict what the simulation would say to every sample of SAMPLES.

    RUN is what `merlin train` has made, or a copy of the directory `best` in it. SAMPLES is a .csv, .tsv, .npy, .npz,
    .parquet or .h5 file with a column for each input of the model, in physical units; further columns are left alone. A
    data set with these will do, too. The predictions are in physical units, and in the order of the samples.
    """
    from merlin.cli.results import TrainedRun, predict_command

    trained = TrainedRun(run, device, trust_code)
    predict_command(trained, samples, out, split_names(fields), batch_size, as_json)
