"""Parts of tensors as torch.distributed.checkpoint writes and reads them. Loading it takes two seconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from msgspec import Struct
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

from merlin.train.parallel.mesh import Ranks
from merlin.train.state_file import Part


def write_parts(directory: Path, tensors: dict[str, Tensor], ranks: Ranks) -> list[Part]:
    """Write tensors, or this rank's parts of them; returns where these are."""
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
    return parts


class _Where(Struct, frozen=True):
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


def read_distributed_parts(
    directory: Path, parts: list[Part], like: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Read tensors to the CPU; those distributed in `like` become new ones, distributed in the same way."""
    reader = _PartsReader(directory, parts)
    metadata = reader.read_metadata()
    tensors = {name: _empty(known, like.get(name)) for name, known in metadata.state_dict_metadata.items()}
    planner = DefaultLoadPlanner(flatten_state_dict=False)
    planner.set_up_planner(tensors, metadata, is_coordinator=True)
    reader.set_up_storage_reader(metadata, True)
    reader.read_data(planner.create_local_plan(), planner).wait()
    return tensors


def _empty(known: Any, like: Tensor | None) -> Tensor:
    if isinstance(like, DTensor):
        return torch.empty_like(like)
    return torch.empty(known.size, dtype=known.properties.dtype)
