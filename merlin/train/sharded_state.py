"""States that the ranks of a trainer write together into a directory, by torch.distributed.checkpoint.

state.pt               everything but the tensors, where each part of each tensor is, and the digests of the files
__<rank>_0.distcp      the tensors that a rank wrote

A rank writes its parts of distributed tensors (DTensor); tensors that all ranks have are written by the first one. Any
number of ranks can read the state. Nothing in it is a pickle that may run code: torch.distributed.checkpoint plans and
writes the parts, and `state.pt` stands in for its pickled `.metadata`.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from merlin.base.files import sync_path
from merlin.base.records import FileFormat
from merlin.errors import CheckpointError
from merlin.shards.format.digest import digest_file_ranges
from merlin.shards.format.regular_file import require_regular
from merlin.train.parallel.mesh import Ranks
from merlin.train.state_file import (
    Part,
    State,
    damage_explained,
    disk_error,
    read_state,
    reason,
    require_format,
    write_state,
)

STATE = "state.pt"
_PLACE = "merlin tensor"  # the key of what stands in state.pt where a tensor was

T = TypeVar("T")


def write_sharded(directory: Path, head: Mapping[str, Any], state: State, ranks: Ranks) -> None:
    """Write a state into an empty directory; all ranks have to call it. `head` says the format and version.

    All files are flushed; their names are flushed by `name_directory`, once all are there.

    Raises CheckpointError on all ranks if it failed on one of them.
    """
    tensors: dict[str, Tensor] = {}
    plain = _without_tensors(state, "", tensors)
    mine = {name: tensor for name, tensor in tensors.items() if _is_mine(tensor, ranks)}
    written = on_all_ranks(ranks, lambda: _write_parts(directory, mine, ranks))

    def finish() -> None:
        if ranks.is_first:
            parts = [part for parts, _ in written for part in parts]
            files = {name: digest for _, digests in written for name, digest in digests.items()}
            write_state(directory / STATE, {**head, "state": plain, "parts": parts, "files": files})
            sync_path(directory / STATE)

    on_all_ranks(ranks, finish)


def on_all_ranks(ranks: Ranks, work: Callable[[], T]) -> list[T]:
    """What the work of each rank returned, plain values. Raises CheckpointError on all if it failed on one of them."""
    error, found = "", None
    try:
        found = work()
    except (OSError, RuntimeError, ValueError, TypeError, AssertionError, CheckpointError) as raised:
        error = reason(disk_error(raised) or raised)
    answers = ranks.gather((error, found))
    for error, _ in answers:
        if error:
            raise CheckpointError(error)
    return [answer for _, answer in answers]


def read_sharded(directory: Path, format: FileFormat, like: State | None = None) -> State:
    """A state as `write_sharded` wrote it, on the CPU, with the numbers of its head; any number of ranks may read it.

    Of a tensor that is distributed in the state `like`, a rank gets the part that it has there. Raises CheckpointError
    if the state is damaged, or of another format or version.
    """
    present: dict[str, Tensor] = {}
    _without_tensors(like or {}, "", present)
    head = read_state(directory / STATE)
    require_format(directory, head, format)
    with damage_explained(directory):
        plain, files = head.pop("state"), head.pop("files")
        parts: list[Part] = [tuple(part) for part in head.pop("parts")]
        for file in {*files, *(part[5] for part in parts)}:
            if Path(file).name != file or _digest(directory / file) != files[file]:
                raise CheckpointError(f"{directory} is damaged: the checksum of {file} does not fit")
        _require_complete(directory, parts, {file: (directory / file).stat().st_size for file in files})
        state: State = head | _with_tensors(plain, _read_parts(directory, parts, present))
    return state


def read_plain(directory: Path, format: FileFormat) -> State:
    """The same without the tensors, which are not looked at. Raises CheckpointError."""
    head = read_state(directory / STATE)
    require_format(directory, head, format)
    plain: State = head.pop("state")
    return head | plain


def _without_tensors(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The value with a note in the place of each tensor, which `tensors` gets."""
    if isinstance(value, Tensor) and _has_parts(value):
        tensors[place] = value.detach()
        return {_PLACE: place}
    if isinstance(value, dict):
        made = copy.copy(value)  # a state dict of torch has attributes of its own
        for key, item in value.items():
            made[key] = _without_tensors(item, f"{place}/{key!r}" if place else repr(key), tensors)
        return made
    if isinstance(value, list | tuple):
        return _like(value, [_without_tensors(item, f"{place}/{i}", tensors) for i, item in enumerate(value)])
    return value


def _has_parts(tensor: Tensor) -> bool:
    """True for what torch.distributed.checkpoint can write; sparse and quantised tensors stay in `state.pt`."""
    return tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta


def _like(value: Any, items: list[Any]) -> Any:
    """A list, tuple or named tuple of the same type with other items."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _with_tensors(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if _PLACE in value:
            return tensors[value[_PLACE]]
        for key, item in value.items():
            value[key] = _with_tensors(item, tensors)
        return value
    if isinstance(value, list | tuple):
        return _like(value, [_with_tensors(item, tensors) for item in value])
    return value


def _is_distributed(tensor: Tensor) -> bool:
    """True for a DTensor; there is none before their module is loaded, which takes two seconds."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _is_mine(tensor: Tensor, ranks: Ranks) -> bool:
    """True if this rank is the first of those that have this tensor, or this part of it."""
    if not _is_distributed(tensor):
        return ranks.is_first
    distributed: Any = tensor
    place = distributed.device_mesh.get_coordinate()
    return place is not None and not any(
        index
        for index, placement in zip(place, distributed.placements, strict=True)
        if placement.is_replicate()
    )


def _write_parts(
    directory: Path, tensors: dict[str, Tensor], ranks: Ranks
) -> tuple[list[Part], dict[str, str]]:
    """Write tensors, or this rank's parts of them; returns where they are, and the files' digests."""
    if not tensors:
        return [], {}
    from merlin.train.distributed_parts import write_parts  # imported late: loading it takes two seconds

    parts = write_parts(directory, tensors, ranks)
    return parts, {file: _digest(directory / file) for file in {part[5] for part in parts}}


def _read_parts(directory: Path, parts: list[Part], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Read tensors to the CPU; those distributed in `like` become new ones, distributed in the same way.

    If none is distributed, the parts are read here, because loading torch.distributed.checkpoint takes about a second,
    far longer than reading a small state.
    """
    if any(map(_is_distributed, like.values())):
        from merlin.train.distributed_parts import read_distributed_parts

        return read_distributed_parts(directory, parts, like)
    tensors: dict[str, Tensor] = {}
    for name, dtype, size, offsets, sizes, file, begin, length in parts:
        tensor = tensors.setdefault(name, torch.empty(size, dtype=getattr(torch, dtype)))
        part = _read_part(directory / file, begin, length)
        if part.dtype != tensor.dtype or list(part.shape) != sizes:
            raise CheckpointError(f"{directory} is damaged: a part of {name} has another shape or type")
        tensor[tuple(slice(lo, lo + num) for lo, num in zip(offsets, sizes, strict=True))] = part
    return tensors


def _read_part(path: Path, begin: int, length: int) -> Tensor:
    """What torch.save wrote of one part of a tensor."""
    with path.open("rb") as file:
        file.seek(begin)
        part = torch.load(BytesIO(file.read(length)), map_location="cpu", weights_only=True)
    if not isinstance(part, Tensor):
        raise CheckpointError(f"{path} is damaged: it holds what is no tensor")
    return part


def _require_complete(directory: Path, parts: list[Part], sizes: Mapping[str, int]) -> None:
    """Raise CheckpointError unless the parts of each tensor fit together and are all of it, once."""
    tensors: dict[str, list[Part]] = {}
    for part in parts:
        tensors.setdefault(part[0], []).append(part)
    for name, mine in tensors.items():
        _, dtype, size, *_ = mine[0]
        places = {tuple(offsets) for _, _, _, offsets, *_ in mine}
        fits = all(
            part[1:3] == (dtype, size)
            and len(part[3]) == len(part[4]) == len(size)
            and all(
                lo >= 0 and num >= 0 and lo + num <= whole
                for lo, num, whole in zip(part[3], part[4], size, strict=True)
            )
            and prod(part[4]) * getattr(torch, dtype).itemsize <= part[7] <= sizes[part[5]]
            for part in mine
        )
        if not fits or len(places) != len(mine) or sum(prod(part[4]) for part in mine) != prod(size):
            raise CheckpointError(f"{directory} is damaged: the parts of {name} do not make a tensor")


def _digest(path: Path) -> str:
    require_regular(path)
    with path.open("rb") as file:
        return digest_file_ranges(file.fileno(), [(0, path.stat().st_size)])
