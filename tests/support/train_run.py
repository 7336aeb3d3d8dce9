"""Runs of small models, made and driven by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from merlin.train.config_file import parse_config
from merlin.train.events import StopRequest
from merlin.train.loop import Ending
from merlin.train.parallel.mesh import Mesh
from merlin.train.parallel.rendezvous import Rendezvous
from merlin.train.parallel.world import World
from merlin.train.prepare import Prepared, check
from merlin.train.process import train
from merlin.train.reports import Silent
from merlin.train.run_directory import RunDirectory

YAML = """
data: {data}
directory: {directory}
fields: {{images: []}}
model: {{name: "tiny_models:Noisy"}}
optimizer: {{lr: 0.01}}
training: {{steps: 40, batch_size: 64, validate_every: 10, log_every: 5, threads: 1, device: cpu}}
"""


def prepare_run(data: Path, directory: Path, *words: str) -> Prepared:
    text = YAML.format(data=data, directory=directory)
    return check(parse_config(text, "train.yaml", words))


class Recorder(Silent):
    def __init__(self) -> None:
        self.reports, self.notes = [], []

    def report(self, report) -> None:
        self.reports.append(report)

    def note(self, note) -> None:
        self.notes.append(note.text)


class StopAt:
    """Asks for the end of the run when it has been looked at this often."""

    def __init__(self, looks: int) -> None:
        self.left = looks
        self.reason = "the test"

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def train_run(
    prepared: Prepared, *, run: RunDirectory | None = None, trainer: int = 0, stop=None
) -> tuple[RunDirectory, Ending, Recorder]:
    run = prepared.begin() if run is None else run
    mesh = Mesh.build(Rendezvous(World()), prepared.config.tournament, trainer)
    recorder = Recorder()
    return run, train(run, prepared.config, mesh, recorder, stop or StopRequest()), recorder


def state_digest(state) -> str:
    """Of every tensor and number in it, bit for bit; times are left out."""
    digest = hashlib.sha256()

    def add(value, key="") -> None:
        if isinstance(value, torch.Tensor):
            digest.update(f"{key}{value.dtype}{tuple(value.shape)}".encode())
            digest.update(value.detach().contiguous().numpy().tobytes())
        elif isinstance(value, dict):
            for name in sorted(value, key=str):
                if name != "train_s":
                    add(value[name], f"{key}.{name}")
        elif isinstance(value, list | tuple):
            for i, item in enumerate(value):
                add(item, f"{key}[{i}]")
        else:
            digest.update(f"{key}={value!r}".encode())

    add(state)
    return digest.hexdigest()


def last_checkpoint(directory: Path) -> Path:
    """The newest checkpoint of a trainer, as this version writes them."""
    return max(directory.glob("step_*.[0-9]*"), key=lambda path: path.name)
