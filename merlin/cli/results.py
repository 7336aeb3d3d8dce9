"""What the commands around trained models do, and print."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from merlin.base.text import count, duration, size
from merlin.cli.bar import progress_bar
from merlin.cli.output import console, is_terminal, print_json, table
from merlin.errors import MissingExtraError


@contextmanager
def _needing_torch(purpose: str) -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "train", purpose) from error


@dataclass(frozen=True)
class TrainedRun:
    """What the command line says of the run whose model it asks."""

    path: Path
    device: str
    trust_code: bool  # import the model that it names, whatever it is


def evaluate_command(
    run: TrainedRun, out: Path | None, split: str | None, data: Path | None, as_json: bool
) -> None:
    """Evaluate, write the report, and print the errors."""
    from merlin.shards.plot.canvas import require_matplotlib

    require_matplotlib()
    with _needing_torch("evaluating a model"):
        from merlin.train.results.evaluate import evaluate
        from merlin.train.results.report import write_report
    with progress_bar("evaluate", "samples", quiet=as_json) as tell:
        evaluation = evaluate(
            run.path, split=split, data=data, device=run.device, trust_code=run.trust_code, progress=tell
        )
    with _working("drawing the report"):
        page, charts = write_report(evaluation, out)
    if as_json:
        print_json({**evaluation.facts, "report": page, "charts": charts})
        return
    _show(evaluation.facts)
    print(f"\n{page}")


@contextmanager
def _working(what: str) -> Iterator[None]:
    """Something that turns, in a terminal."""
    if not is_terminal():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def _show(facts: Mapping[str, Any]) -> None:
    place = f"trainer {facts['trainer']}, step {facts['step']:,}"
    print(f"{facts['model']} ({place}) on {count(facts['num_samples'], 'sample')}: {facts['split']}")
    for note in facts["notes"]:
        print(f"note: {note}")
    if facts["classes"]:
        rows = [
            [name, *(_number(found[key]) for key in ("accuracy", "most_frequent", "cross_entropy"))]
            for name, found in facts["classes"].items()
        ]
        columns_of_classes = ("class", "accuracy", "most frequent", "cross-entropy")
        console().print("", table(columns_of_classes, rows, right=columns_of_classes[1:]))
    if facts["scalars"]:
        rows = [
            [
                name,
                found["units"],
                _number(found["r2"]),
                _number(found["relative_l2"]),
                _number(found["rmse"]),
            ]
            for name, found in facts["scalars"].items()
        ]
        columns = ("scalar", "units", "R²", "relative L2", "RMSE")
        console().print("", table(columns, rows, right=columns[2:]))
    if facts["images"]:
        rows = [
            [name, _number(found["relative_l2"]), _number(found["ssim"]), _number(found["r2"])]
            for name, found in facts["images"].items()
        ]
        columns_of_images = ("image", "relative L2", "SSIM", "R²")
        console().print("", table(columns_of_images, rows, right=columns_of_images[1:]))
    if facts["inputs"]:
        rows = [
            [name, _number(found["r2"]), _number(found["rmse"])] for name, found in facts["inputs"].items()
        ]
        columns_of_inputs = ("input, inferred", "R²", "RMSE")
        console().print("", table(columns_of_inputs, rows, right=columns_of_inputs[1:]))
    metrics = ", ".join(f"{name} {_number(value)}" for name, value in facts["metrics"].items())
    print(f"\nmetrics of the model: {metrics}")


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.4g}"


def predict_command(
    run: TrainedRun,
    samples: Path,
    out: Path,
    fields: Sequence[str] | None,
    batch_size: int,
    as_json: bool,
) -> None:
    """Predict a file of samples."""
    with _needing_torch("predicting"):
        from merlin.train.results.predict import predict_file
        from merlin.train.results.surrogate import load_surrogate
    begin = time.monotonic()
    surrogate = load_surrogate(run.path, device=run.device, trust_code=run.trust_code)
    with progress_bar("predict", "samples", quiet=as_json) as tell:
        done = predict_file(surrogate, samples, out, fields=fields, batch_size=batch_size, progress=tell)
    seconds = time.monotonic() - begin
    for note in done.notes:
        print(f"merlin: warning: {note}", file=sys.stderr)
    if as_json:
        print_json({"seconds": seconds, **_told(done)})
        return
    what = ", ".join(done.fields[:8]) + (", …" if len(done.fields) > 8 else "")
    print(f"{out}: {count(done.num, 'sample')}, {size(out.stat().st_size)}, {duration(seconds)}\n  {what}")


def _told(done: Any) -> dict[str, Any]:
    names = ("out", "num", "inputs", "fields", "outside", "notes")
    return {{"num": "num_samples"}.get(name, name): getattr(done, name) for name in names}


def export_command(run: TrainedRun, format: str, out: Path, as_json: bool) -> None:
    """Export the best model of a run."""
    with _needing_torch("exporting a model"):
        from merlin.train.results.export import export_model, model_facts
        from merlin.train.results.surrogate import load_surrogate
    surrogate = load_surrogate(run.path, device=run.device, trust_code=run.trust_code)
    export_model(surrogate, format, out)
    if as_json:
        print_json({"out": out, "to": format, **model_facts(surrogate)})
        return
    inputs, outputs = ", ".join((*surrogate.inputs, *surrogate.input_images)), ", ".join(surrogate.outputs)
    print(f"{out}: {format}, {size(out.stat().st_size)}\n  inputs {inputs}\n  outputs {outputs}")


def emit_command(config: Path, words: Sequence[str], out: Path, trust_code: bool, as_json: bool) -> None:
    """Write a run for LBANN."""
    from merlin.train.lbann.emit import emit

    with progress_bar("export to lbann", "samples", quiet=as_json) as tell:
        done = emit(config, words, out, tell, trust_code=trust_code)
    if as_json:
        print_json({"script": done.script, "files": done.files, "num_samples": done.num_samples})
        return
    print(f"{done.script}: {count(done.num_samples, 'sample')} in {out / 'data'}")
    print(f"  python {done.script} --help")
