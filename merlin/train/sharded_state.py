"""States that the ranks of a trainer write together into a directory, by torch.distributed.checkpoint.

state.pt               everything but the tensors, where each part of each tensor is, and the digests of the files
__<rank>_0.distcp      the tensors that a rank wrote

A rank writes its parts of distributed tensors (DTensor); tensors that all ranks have are written by the first one. Any
number of ranks can read the state. Nothing in it is a pickle: torch.distributed.checkpoint plans, writes and reads the
parts, and `state.pt` stands in for its pickled `.metadata`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.tensor import DTensor

from merlin.base.files import sync_path
from merlin.errors import CheckpointError
from merlin.shards.format.digest import digest_file_ranges
from merlin.shards.format.regular_file import require_regular
from merlin.train.parallel.mesh import Ranks
from merlin.train.state_file import (
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
Part = tuple[str, str, list[int], list[int], list[int], str, int, int]


def write_sharded(directory: Path, head: Mapping[str, Any], state: State, ranks: Ranks) -> None:
    """Write a state into an empty directory; all ranks have to call it. `head` says the format and version.

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
            sync_path(directory)

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


def read_sharded(directory: Path, name: str, version: int, like: State | None = None) -> State:
    """A state as `write_sharded` wrote it, on the CPU, with the numbers of its head; any number of ranks may read it.

    Of a tensor that is distributed in the state `like`, a rank gets the part that it has there. Raises CheckpointError
    if the state is damaged, or of another format or version.
    """
    present: dict[str, Tensor] = {}
    _without_tensors(like or {}, "", present)
    head = read_state(directory / STATE)
    require_format(directory, head, name, version)
    with damage_explained(directory):
        plain, files = head.pop("state"), head.pop("files")
        parts: list[Part] = [tuple(part) for part in head.pop("parts")]
        for file in {*files, *(part[5] for part in parts)}:
            if Path(file).name != file or _digest(directory / file) != files[file]:
                raise CheckpointError(f"{directory} is damaged: the checksum of {file} does not fit")
        _require_complete(directory, parts, {file: (directory / file).stat().st_size for file in files})
        state: State = head | _with_tensors(plain, _read_parts(directory, parts, present))
    return state


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


def _is_mine(tensor: Tensor, ranks: Ranks) -> bool:
    """True if this rank is the first of those that have this tensor, or this part of it."""
    if not isinstance(tensor, DTensor):
        return ranks.is_first
    place = tensor.device_mesh.get_coordinate()
    return place is not None and not any(
        index for index, placement in zip(place, tensor.placements, strict=True) if placement.is_replicate()
    )


def _write_parts(
    directory: Path, tensors: dict[str, Tensor], ranks: Ranks
) -> tuple[list[Part], dict[str, str]]:
    """Write tensors, or this rank's parts of them; where they are, and the digests of the files."""
    if not tensors:
        return [], {}
    planner = DefaultSavePlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors)
    writer = FileSystemWriter(directory, overwrite=False)
    writer.set_up_storage_writer(ranks.is_first)
    plans = [planner.create_local_plan()] * (ranks.rank + 1)
    plan = writer.prepare_global_plan(plans)[ranks.rank]  # this names the file after the rank
    items = {item.index: item.tensor_data for item in plan.items}
    parts: list[Part] = []
    for result in writer.write_data(plan, planner).wait():
        data, where = items[result.index], result.storage_data
        assert data is not None  # of a tensor
        chunk, dtype = data.chunk, str(data.properties.dtype).removeprefix("torch.")
        shape = [list(numbers) for numbers in (data.size, chunk.offsets, chunk.sizes)]
        parts.append((result.index.fqn, dtype, *shape, where.relative_path, where.offset, where.length))
    return parts, {file: _digest(directory / file) for file in {part[5] for part in parts}}


@dataclass(frozen=True)
class _Where:
    """Where a part of a tensor is, as FileSystemReader asks for it."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: None = None


class _PartsReader(FileSystemReader):
    """Reads by a list of parts, without a pickled `.metadata`."""

    def __init__(self, directory: Path, parts: list[Part]) -> None:
        super().__init__(directory)
        self._parts = parts

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tensors: dict[str, TensorStorageMetadata] = {}
        where = {}
        for name, dtype, size, offsets, sizes, file, begin, length in self._parts:
            known = TensorProperties(dtype=getattr(torch, dtype))
            tensor = tensors.setdefault(name, TensorStorageMetadata(known, torch.Size(size), []))
            tensor.chunks.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
            where[MetadataIndex(name, torch.Size(offsets))] = _Where(file, begin, length)
        return Metadata(dict(tensors), storage_data=where)


def _read_parts(directory: Path, parts: list[Part], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors on the CPU; those that are distributed in `like` as new ones that are distributed in the same way."""
    reader = _PartsReader(directory, parts)
    metadata = reader.read_metadata()
    tensors = {name: _empty(known, like.get(name)) for name, known in metadata.state_dict_metadata.items()}
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    reader.read_data(planner.create_local_plan(), planner).wait()
    return tensors


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


def _empty(known: Any, like: Tensor | None) -> Tensor:
    if isinstance(like, DTensor):
        return torch.empty_like(like)
    return torch.empty(known.size, dtype=known.properties.dtype)


def _digest(path: Path) -> str:
    require_regular(path)
    with path.open("rb") as file:
        return digest_file_ranges(file.fileno(), [(0, path.stat().st_size)])
