"""Trained models for other programs: ONNX and TorchScript, with the normalisation inside.

Both take "inputs" (n, d) float64 in physical units, then each image among the inputs (n, *shape) float32, and give one
output for each thing predicted: scalars (n,) float64, images (n, *shape) float32, classes (n,) int64 and their
probabilities (n, K) float32. What the columns are is in the file: as metadata of ONNX, and as `merlin.json` inside of a
TorchScript archive.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from merlin.base.files import replacing
from merlin.base.records import FileFormat
from merlin.errors import MissingExtraError, TrainingError
from merlin.train.models.registry import MODEL_ERRORS
from merlin.train.results.physical import some_inputs
from merlin.train.results.surrogate import Surrogate

Predict = Callable[..., dict[str, Tensor]]  # of the model's inputs, in their order

FORMAT = FileFormat("merlin-exported-model", 1)
FORMATS = ("onnx", "torchscript")
FACTS = "merlin.json"  # in a TorchScript archive
_TRACED, _TRIED = 3, 5  # samples: a model that depends on their number is found out
_RELATIVE = 1e-4  # by which an exported model may differ from the model


def export_model(surrogate: Surrogate, format: str, out: Path) -> Path:
    """Write the model of a surrogate on the CPU as `out`, and prove that it predicts the same.

    Raises TrainingError if the model cannot be exported, MissingExtraError if a package is missing.
    """
    writers = {"onnx": _write_onnx, "torchscript": _write_torchscript}
    with replacing(out) as temporary:
        predict = writers[format](surrogate, temporary)
        if predict is not None:
            _require_equal(surrogate, predict, format)
    return out


def model_facts(surrogate: Surrogate) -> dict[str, Any]:
    """The facts that a program needs to use an exported model."""
    quantities = surrogate.best.quantities
    return {
        **FORMAT.head(),
        "model": surrogate.best.name,
        "model_version": surrogate.best.facts["model"].get("version"),
        "merlin": surrogate.best.facts["model"].get("merlin"),
        "inputs": [
            {"name": q.name, "low": q.low, "high": q.high, **({"shape": list(q.shape)} if q.shape else {})}
            for q in (*quantities.columns, *quantities.input_images)
        ],
        "outputs": [
            {
                "name": q.name,
                "shape": list(q.shape),
                "units": q.units,
                "description": q.description,
                "channels": list(q.channels),
                **({"classes": list(q.classes)} if q.classes else {}),
            }
            for q in surrogate.predicted
        ],
        **{key: surrogate.best.facts[key] for key in ("trainer", "step", "metrics")},
    }


class _Outputs(nn.Module):
    """The model as a function that gives a tuple, as ONNX has it."""

    def __init__(self, surrogate: Surrogate) -> None:
        super().__init__()
        self.model = surrogate.model
        self.names = surrogate.outputs

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        made = self.model(*given)
        return tuple(made[name] for name in self.names)


def _write_torchscript(surrogate: Surrogate, path: Path) -> Predict:
    example = some_inputs(surrogate.best.quantities, _TRACED)
    surrogate.model.requires_grad_(False)  # the file keeps it, and such outputs cannot become arrays
    with _explaining("TorchScript", surrogate), torch.no_grad():
        traced = torch.jit.trace(surrogate.model, example, strict=False, check_trace=False)
        torch.jit.save(traced, str(path), _extra_files={FACTS: json.dumps(model_facts(surrogate))})
        loaded = torch.jit.load(str(path), map_location="cpu")

    return lambda *given: dict(loaded(*given))


def _write_onnx(surrogate: Surrogate, path: Path) -> Predict | None:
    try:
        import onnx
        import onnxscript  # noqa: F401  torch's exporter is built on it
    except ImportError as error:
        raise MissingExtraError("onnx and onnxscript", "train", "export to ONNX") from error
    module = _Outputs(surrogate).eval()
    samples = torch.export.Dim("samples")
    with _explaining("ONNX", surrogate), torch.no_grad():
        program = torch.onnx.export(
            module,
            some_inputs(surrogate.best.quantities, _TRACED),
            input_names=list(surrogate.model.input_names),
            output_names=list(module.names),
            dynamic_shapes=(tuple({0: samples} for _ in surrogate.model.input_names),),
            dynamo=True,
            verbose=False,
        )
        assert program is not None
        model = program.model_proto
    facts = {**model_facts(surrogate), "producer": "merlin"}
    onnx.helper.set_model_props(model, {"merlin": json.dumps(facts)})
    onnx.save_model(model, str(path))
    onnx.checker.check_model(str(path))
    return _onnx_runner(path, surrogate.model.input_names, module.names)


def _onnx_runner(path: Path, inputs: tuple[str, ...], names: tuple[str, ...]) -> Predict | None:
    """Runs the file as other programs do; None where ONNX Runtime is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def predict(*given: Tensor) -> dict[str, Tensor]:
        arrays = {name: values.numpy() for name, values in zip(inputs, given, strict=True)}
        found = session.run(list(names), arrays)
        return {name: torch.from_numpy(values) for name, values in zip(names, found, strict=True)}

    return predict


def _require_equal(surrogate: Surrogate, predict: Predict, format: str) -> None:
    """Raise TrainingError unless the exported model predicts the same, also for another number of samples."""
    given = some_inputs(surrogate.best.quantities, _TRIED)
    with _explaining(format, surrogate), torch.inference_mode():
        expected, found = surrogate.model(*given), predict(*given)
    for name, values in expected.items():
        scale = float(values.abs().max()) or 1.0
        if found[name].shape != values.shape or float((found[name] - values).abs().max()) > _RELATIVE * scale:
            raise TrainingError(
                f"the model {surrogate.best.name} as {format} predicts another '{name}' than the model itself; nothing "
                "was written. Does it depend on the number of samples, or draw random numbers?"
            )


@contextmanager
def _explaining(format: str, surrogate: Surrogate) -> Iterator[None]:
    """Silence the exporters' warnings, and raise their errors as errors about the model."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except MODEL_ERRORS as error:
        raise TrainingError(
            f"the model {surrogate.best.name} cannot be exported as {format}: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else 'no reason given'}"
        ) from error
    finally:
        logging.disable(before)
