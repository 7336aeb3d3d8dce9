"""What the commands around trained models do, and print."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from merlin.base.text import count, duration, size, some_of
from merlin.cli.display import progress_bar, spinner
from merlin.cli.options import split_names
from merlin.cli.output import print_json, print_table, remark, warn
from merlin.shards.plot.canvas import require_matplotlib
from merlin.train.lbann.emit import emit
from merlin.train.results.evaluate import evaluate
from merlin.train.results.export import export_model, model_facts
from merlin.train.results.intervals import SHOWN
from merlin.train.results.predict import predict_file
from merlin.train.results.report.page import write_report
from merlin.train.results.surrogate import Surrogate, UncertainSurrogate, load_surrogate

# key in the facts of an evaluation -> head of the table, and keys of its numbers
_TABLES = {
    "classes": ("class", ("accuracy", "most_frequent", "cross_entropy")),
    "scalars": ("scalar", ("r2", "relative_l2", "rmse")),
    "images": ("image", ("relative_l2", "ssim", "r2")),
    "inputs": ("input, inferred", ("r2", "rmse")),
}
_HEADS = {
    "most_frequent": "most frequent",
    "cross_entropy": "cross-entropy",
    "relative_l2": "relative L2",
    "r2": "R²",
    "rmse": "RMSE",
    "ssim": "SSIM",
}


def evaluate_run(
    run: Path,
    out: Path | None,
    split: str | None,
    data: Path | None,
    device: str,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Evaluate, write the report, and print the errors."""
    require_matplotlib()
    with progress_bar("evaluate", "samples", quiet=as_json) as report:
        evaluation = evaluate(
            run, split=split, data=data, device=device, trust_code=trust_code, progress=report
        )
    with spinner("drawing the report"):
        page, charts = write_report(evaluation, out)
    if as_json:
        print_json({**evaluation.facts, "report": page, "charts": charts})
        return
    _show(evaluation.facts)
    print(f"\n{page}")


def _show(facts: Mapping[str, Any]) -> None:
    place = f"trainer {facts['trainer']}, step {facts['step']:,}"
    print(f"{facts['model']} ({place}) on {count(facts['num_samples'], 'sample')}: {facts['split']}")
    for note in facts["notes"]:
        print(f"note: {note}")
    if facts["baseline"] is not None:
        print(facts["baseline"]["sentence"])
    for key, (head, numbers) in _TABLES.items():
        if facts[key]:
            units = ["units"] if key == "scalars" else []
            columns = [_HEADS.get(number, number) for number in numbers]
            rows = [
                [name, *(found[unit] for unit in units), *(_number(found[number]) for number in numbers)]
                for name, found in facts[key].items()
            ]
            print()
            print_table([head, *units, *columns], rows, right=columns)
    metrics = ", ".join(f"{name} {_number(value)}" for name, value in facts["metrics"].items())
    print(f"\nmetrics of the model: {metrics}")
    if facts["uncertainty"] is not None:
        _show_uncertainty(facts["uncertainty"])


def _show_uncertainty(found: Mapping[str, Any]) -> None:
    """The shares of true values in intervals, as they are and scaled, and the errors of the mean of all models."""
    print(f"\n{found['sentence']}")
    for note in found["notes"]:
        print(f"note: {note}")
    places = [found["levels"].index(level) for level in SHOWN]
    levels = [f"{100 * level:.0f} %" for level in SHOWN]
    rows = []
    for name, of in found["fields"].items():
        error, shares = of["error"], of["coverage"]
        held = [f"{_percent(shares['raw'][i])} → {_percent(shares['scaled'][i])}" for i in places]
        rows.append([name, _number(error["best"]), _number(error["mean"]), _number(of["scale"]), *held])
    columns = ["best model", "mean", "scale", *levels]
    print_table(["held in intervals of", *columns], rows, right=columns)


def _percent(share: float) -> str:
    return "–" if share != share else f"{100 * share:.0f}"


def _number(value: float) -> str:
    return "–" if value != value else f"{value:.4g}"


def predict_samples(
    run: Path,
    samples: Path,
    out: Path,
    fields: str | None,
    uncertainty: bool,
    batch_size: int,
    device: str,
    trust_code: bool,
    as_json: bool,
) -> None:
    """Predict a file of samples."""
    begin = time.monotonic()
    surrogate = load_surrogate(run, device=device, trust_code=trust_code, uncertainty=uncertainty)
    names = split_names(fields)
    with progress_bar("predict", "samples", quiet=as_json) as report:
        done = predict_file(surrogate, samples, out, fields=names, batch_size=batch_size, progress=report)
    seconds = time.monotonic() - begin
    for note in done.notes:
        remark(f"merlin: warning: {note}")
    if as_json:
        facts = {key: getattr(done, key) for key in ("out", "inputs", "fields", "outside", "notes")}
        print_json({"seconds": seconds, "num_samples": done.num, **facts, "uncertainty": _spread(surrogate)})
        return
    print(f"{out}: {count(done.num, 'sample')}, {size(out.stat().st_size)}, {duration(seconds)}")
    print(f"  {some_of(done.fields)}")
    if isinstance(surrogate, UncertainSurrogate):
        reaches = ", ".join(f"{100 * level:.0f} %: ±{surrogate.reach(level):.3g}" for level in SHOWN)
        print(f"  means of {count(len(surrogate.members.models), 'model')}; intervals in *_std: {reaches}")


def _spread(surrogate: Surrogate) -> dict[str, Any] | None:
    """Where the standard deviations of predictions come from, and how many of them an interval has on each side."""
    if not isinstance(surrogate, UncertainSurrogate):
        return None
    scales = surrogate.scales
    return {
        "members": surrogate.members.to_json(),
        "notes": list(surrogate.members.notes),
        "fitted_on": {"split": scales.split, "num_samples": scales.num_samples},
        "scales": dict(scales.by_field),
        "levels": list(SHOWN),
        "reach": [surrogate.reach(level) for level in SHOWN],
    }


def export_run(run: Path, format: str, out: Path, trust_code: bool, as_json: bool) -> None:
    """Export the best model of a run."""
    surrogate = load_surrogate(run, device="cpu", trust_code=trust_code)
    export_model(surrogate, format, out)
    if as_json:
        print_json({"out": out, "to": format, **model_facts(surrogate)})
        return
    inputs, outputs = ", ".join((*surrogate.inputs, *surrogate.input_images)), ", ".join(surrogate.outputs)
    print(f"{out}: {format}, {size(out.stat().st_size)}\n  inputs {inputs}\n  outputs {outputs}")


def emit_command(config: Path, words: Sequence[str], out: Path, trust_code: bool, as_json: bool) -> None:
    """Write a run for LBANN."""
    with progress_bar("export to lbann", "samples", quiet=as_json) as report:
        done = emit(config, words, out, report, trust_code=trust_code)
    warn(done.warnings)
    if as_json:
        print_json({"script": done.script, "files": done.files, "num_samples": done.num_samples})
        return
    print(f"{done.script}: {count(done.num_samples, 'sample')} in {out / 'data'}")
    print(f"  python {done.script} --help")
