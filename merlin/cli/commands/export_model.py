"""`merlin export-model`: a trained model for other programs."""

from __future__ import annotations

from pathlib import Path

import click

from merlin.cli.options import FILE, json_option, run_argument, trust_code_option


@click.command()
@run_argument
@click.option(
    "--to", "format", type=click.Choice(("onnx", "torchscript")), required=True, help="The format to write."
)
@click.option(
    "-o", "--out", type=FILE, required=True, metavar="FILE", help="File to write, usually .onnx or .pt."
)
@trust_code_option
@json_option
def export_model(run: Path, format: str, out: Path, trust_code: bool, as_json: bool) -> None:
    """Write the best model of RUN as ONNX or TorchScript, with the normalisation inside of it.

    The model takes physical inputs (samples, inputs) in float64 and gives physical outputs, each under its name. It is
    compared with the model itself before the file gets its name.
    """
    from merlin.cli.results import TrainedRun, export_command

    export_command(TrainedRun(run, "cpu", trust_code), format, out, as_json)
