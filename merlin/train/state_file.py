"""Files of torch.save that hold tensors and plain values alone, so that reading one runs no code.

Every byte of content is covered by the checksums of the ZIP format.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from merlin.base.records import FileFormat
from merlin.errors import CheckpointError
from merlin.shards.format.regular_file import require_regular

State = dict[str, Any]

# a part of a tensor in a file: name, type and size of the tensor, offsets and size of the part, file, first byte, bytes
Part = tuple[str, str, list[int], list[int], list[int], str, int, int]


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """torch.save, with a full disk as an OSError. Raises CheckpointError for what else goes wrong."""
    try:
        with path.open("wb") as file:
            torch.save(dict(state), file)
    except RuntimeError as error:
        raise disk_error(error) or CheckpointError(f"{path} cannot be written: {error}") from error


def disk_error(error: BaseException) -> OSError | None:
    """What the file raised, which torch's writer hides behind a RuntimeError."""
    return error.__context__ if isinstance(error.__context__, OSError) else None


def read_state(path: Path) -> State:
    """A file of torch.save with tensors and plain values, on the CPU. Raises CheckpointError if it is damaged."""
    with damage_explained(path):
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
    return state


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Raise CheckpointError for everything that reading a damaged or hostile file may raise."""
    try:
        yield
    except FileNotFoundError as error:
        raise CheckpointError(f"there is no {error.filename or path}") from error
    except UnpicklingError as error:  # torch's own message advises people to run the code
        raise CheckpointError(
            f"{path} holds more than tensors and plain values; nothing of it was run"
        ) from error
    except (
        OSError, zipfile.BadZipFile, RuntimeError, ValueError, EOFError, LookupError, TypeError, AttributeError,
        AssertionError, MemoryError,
    ) as error:  # fmt: skip
        raise CheckpointError(f"{path} is damaged: {reason(error)}") from error


def require_format(path: Path, state: State, format: FileFormat) -> None:
    """Raise CheckpointError unless a state says that it is of this format; it may say anything, such as a tensor."""
    if wrong := format.mismatch(state):
        raise CheckpointError(f"{path}: {wrong}")


def reason(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error).splitlines()[0] if str(error) else type(error).__name__
