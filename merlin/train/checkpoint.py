"""Checkpoints: complete states of a trainer under names that are whole or not there.

`step_<number>.pt` are the newest ones, `last.pt` the newest of them and `best.pt` the best, with hard links where the
file system has them. They are files of torch.save that hold tensors and plain values alone, so that reading one runs no
code. Every byte of content is covered by the checksums of the ZIP format.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from merlin.base.files import TEMPORARY_SUFFIX, link_or_copy, replacing
from merlin.errors import CheckpointError
from merlin.shards.format.regular_file import require_regular

FORMAT = "merlin-checkpoint"
VERSION = 1
LAST, BEST = "last.pt", "best.pt"
_NAME = re.compile(r"step_(\d+)\.pt")

State = dict[str, Any]


class Checkpoints:
    """The checkpoints of one trainer in one directory; `note` is told about those that cannot be used."""

    def __init__(self, directory: Path, keep: int, note: Callable[[str], None] = lambda text: None) -> None:
        self.directory = directory
        self._keep = keep
        self._note = note

    def save(self, state: Mapping[str, Any], step: int, *, best: bool = False) -> bool:
        """Write the state after `step` steps; on failure what was there stays, and a note says so."""
        path = self.path(step)
        try:
            with replacing(path) as temporary:
                write_state(temporary, {"format": FORMAT, "version": VERSION, "step": step, **state})
            link_or_copy(path, self.directory / LAST)
            if best:
                self.mark_best(step)
        except (OSError, CheckpointError) as error:
            kept = [s for s in self.steps() if s != step]
            rest = f"the one of step {kept[-1]} stays" if kept else "there is none yet"
            self._note(f"the checkpoint of step {step} could not be written: {_reason(error)}; {rest}")
            return False
        self._forget_old(step)
        return True

    def mark_best(self, step: int) -> None:
        """Let the checkpoint of a step be the best."""
        if self.path(step).is_file() and not _same(self.path(step), self.directory / BEST):
            link_or_copy(self.path(step), self.directory / BEST)

    def path(self, step: int) -> Path:
        return self.directory / f"step_{step:08d}.pt"

    def steps(self) -> list[int]:
        """Of which steps there are checkpoints, ascending."""
        found = (_NAME.fullmatch(path.name) for path in self.directory.glob("step_*.pt"))
        return sorted(int(match[1]) for match in found if match)

    def load(self, step: int) -> State:
        """The checkpoint of a step. Raises CheckpointError if it is damaged or not there."""
        return read_checkpoint(self.path(step))

    def load_newest(self) -> State | None:
        """The newest that can be read; None if there is none at all.

        Raises CheckpointError if there are some and none can be read.
        """
        candidates = [self.path(step) for step in reversed(self.steps())]
        for name in (LAST, BEST):
            path = self.directory / name
            if path.is_file() and not any(_same(path, other) for other in candidates):
                candidates.append(path)
        for number, path in enumerate(candidates):
            try:
                state = read_checkpoint(path)
            except CheckpointError as error:
                self._note(str(error))
                continue
            if number:
                self._note(f"using the checkpoint before it, of step {state['step']}: {path}")
            return state
        if candidates:
            raise CheckpointError(
                f"none of the {len(candidates)} checkpoints in {self.directory} can be read; "
                "remove them to begin anew"
            )
        return None

    def _forget_old(self, newest: int) -> None:
        """Remove all but the last `keep`, those after `newest`, and what killed writers left."""
        steps = self.steps()
        gone = [s for s in steps if s > newest] + [s for s in steps if s <= newest][: -self._keep]
        for step in gone:
            self.path(step).unlink(missing_ok=True)
        for leftover in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
            leftover.unlink(missing_ok=True)


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """torch.save, with a full disk as an OSError; CheckpointError for what else goes wrong."""
    try:
        with path.open("wb") as file:
            torch.save(dict(state), file)
    except RuntimeError as error:  # torch's writer hides what the file object raised
        if isinstance(error.__context__, OSError):
            raise error.__context__ from error
        raise CheckpointError(f"{path} cannot be written: {error}") from error


def read_checkpoint(path: Path) -> State:
    """Read and check a checkpoint. Raises CheckpointError if it is damaged or not there."""
    state = read_state(path)
    require_format(path, state, FORMAT, VERSION)
    return state


def require_format(path: Path, state: State, name: str, version: int) -> None:
    """CheckpointError unless a state says that it is of this format; it may say anything, such as a tensor."""
    found = state.get("format"), state.get("version")
    if not isinstance(found[0], str) or not isinstance(found[1], int):
        raise CheckpointError(f"{path} is damaged: it does not say its format")
    if found != (name, version):
        raise CheckpointError(f"{path}: expected {name} version {version}, found {found[0]} {found[1]}")


def read_state(path: Path) -> State:
    """A file of torch.save with tensors and plain values, on the CPU; CheckpointError if it is damaged."""
    try:
        require_regular(path)
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise CheckpointError(
                    f"{path} is damaged: torch.save compresses nothing, and it is compressed"
                )
            damaged = archive.testzip()
        if damaged is not None:
            raise CheckpointError(f"{path} is damaged: the checksum of {damaged} does not fit")
        state: State = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict):
            raise CheckpointError(f"{path} is damaged: it holds no state")
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {path}") from error
    except UnpicklingError as error:  # what torch says of it tells people to run the code
        raise CheckpointError(
            f"{path} holds more than tensors and plain values; nothing of it was run"
        ) from error
    except (
        OSError, zipfile.BadZipFile, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError
    ) as error:  # fmt: skip
        raise CheckpointError(f"{path} is damaged: {_reason(error)}") from error
    return state


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
