"""The paths in a training run; without torch, so that those who only look at a run do not need it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from merlin.base.records import FileFormat
from merlin.errors import TrainingError, WorkspaceError
from merlin.shards.format.regular_file import read_json
from merlin.workspace.directory import lock_file

CONFIG, FACTS, NORMALISE, BEST = "config.yaml", "run.json", "normalise.json", "best.json"
MODEL_FORMAT = FileFormat("merlin-model", 1)  # of best/model.pt


class RunPaths:
    """The directory of a run that has begun."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def tournament(self) -> Path:
        return self.path / "tournament"

    @property
    def best(self) -> Path:
        return self.path / "best"

    def trainer(self, index: int) -> TrainerDirectory:
        return TrainerDirectory(self.path / "trainers" / str(index))

    def trainers(self) -> list[int]:
        """The trainers that have begun."""
        found = (p.name for p in (self.path / "trainers").glob("*") if p.is_dir())
        return sorted(int(name) for name in found if name.isdigit())


class TrainerDirectory:
    """What one trainer writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        return self.path / "log"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the trainer, so that only this process trains it; TrainingError if another one does."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with lock_file(self.path / "lock", f"another process trains in {self.path}"):
                yield
        except WorkspaceError as error:
            raise TrainingError(str(error)) from error


def read_facts(path: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file. Raises TrainingError if it cannot be read."""
    try:
        found = read_json(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise TrainingError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise TrainingError(f"{path} is damaged: it holds no facts")
    return found


def is_run(path: Path) -> bool:
    return (path / FACTS).is_file()
