"""Reads what LBANN's HDF5 data reader reads, the way its documentation describes it; shares no code with Merlin.

Sample lists: docs "Sample Lists". Schemas: docs "HDF5 Data Reader": metadata trickles down, the experiment schema
chooses among the fields of the data schema and overrides its metadata; a value becomes scale * x + bias after it was
coerced; channels-last tensors are transposed; `pack` concatenates in the order of `ordering`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

KNOWN_KEYS = {"dims", "channels", "ordering", "scale", "bias", "layout", "transpose", "coerce", "pack", "hwc"}
TYPES = {"float": np.float32, "double": np.float64, "int": np.int32, "long": np.int64, "int64": np.int64}


@dataclass
class SampleList:
    kind: str  # CONDUIT_HDF5_INCLUSION or …_EXCLUSION
    num_included: int
    num_excluded: int
    directory: Path
    lines: list[tuple[str, int, int, list[str]]]  # file, included, excluded, names

    def samples(self) -> Iterator[tuple[Path, str]]:
        """The samples to use."""
        for file, included, excluded, names in self.lines:
            path = self.directory / file
            with h5py.File(path, "r") as opened:
                present = list(opened)
            assert set(names) <= set(present), f"{path} does not hold all of {names[:3]} …"
            if self.kind == "CONDUIT_HDF5_INCLUSION":
                used = names
            else:
                assert len(names) == excluded
                used = [name for name in present if name not in set(names)]
            assert len(used) == included and len(present) == included + excluded
            yield from ((path, name) for name in used)


def read_sample_list(path: Path) -> SampleList:
    kind, counts, directory, *rest = path.read_text().splitlines()
    assert kind in ("CONDUIT_HDF5_INCLUSION", "CONDUIT_HDF5_EXCLUSION")
    included, excluded, num_files = map(int, counts.split(" "))
    lines = []
    for line in rest:
        file, good, bad, *names = line.split(" ")
        lines.append((file, int(good), int(bad), names))
    assert len(lines) == num_files
    assert sum(line[1] for line in lines) == included
    assert sum(line[2] for line in lines) == excluded
    return SampleList(kind, included, excluded, Path(directory), lines)


def _trickle(
    node: dict[str, Any], inherited: dict[str, Any], path: str, out: dict[str, dict[str, Any]]
) -> None:
    """The metadata of every node, its parent's under its own."""
    own = dict((node or {}).get("metadata") or {})
    assert set(own) <= KNOWN_KEYS, own
    metadata = {**inherited, **own}
    out[path] = metadata
    for key, child in (node or {}).items():
        if key != "metadata":
            _trickle(child, metadata, f"{path}/{key}" if path else key, out)


def _leaves(node: dict[str, Any], path: str) -> Iterator[str]:
    children = [key for key in node or {} if key != "metadata"]
    if not children:
        yield path
    for key in children:
        yield from _leaves(node[key], f"{path}/{key}" if path else key)


def _at(tree: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("/") if path else []:
        tree = tree[key]
    return tree


class Reader:
    """A data reader with its two schemas."""

    def __init__(self, data_schema: Path, experiment_schema: Path) -> None:
        data = yaml.safe_load(data_schema.read_text())
        experiment = yaml.safe_load(experiment_schema.read_text())
        of_data: dict[str, dict[str, Any]] = {}
        of_experiment: dict[str, dict[str, Any]] = {}
        _trickle(data, {}, "", of_data)
        _trickle(experiment, {}, "", of_experiment)
        self.fields: dict[str, dict[str, Any]] = {}
        for start in _leaves(experiment, ""):
            for field in _leaves(_at(data, start), start):
                self.fields[field] = {**of_data[field], **of_experiment[start]}

    def read(self, path: Path, sample: str) -> dict[str, np.ndarray]:
        """Every field of the experiment: coerced, normalised, channels first, flat."""
        with h5py.File(path, "r") as file:
            assert int(file[sample]["performance/success"][0]) == 1
            return {
                field: self._convert(file[sample][field][()], metadata)
                for field, metadata in self.fields.items()
            }

    @staticmethod
    def _convert(stored: np.ndarray, metadata: dict[str, Any]) -> np.ndarray:
        assert stored.ndim == 1, "data fields are scalars or 1-D arrays of scalars"
        values = stored.astype(TYPES[metadata["coerce"]]) if "coerce" in metadata else stored.copy()
        channels = metadata.get("channels")
        if "scale" in metadata or "bias" in metadata:
            assert values.dtype.kind == "f", "only floating-point values are normalised"
            if channels is None:
                assert isinstance(metadata["scale"], float) and isinstance(metadata.get("bias", 0.0), float)
                values = values * values.dtype.type(metadata["scale"]) + values.dtype.type(metadata["bias"])
            else:
                scale, bias = metadata["scale"], metadata.get("bias", [0.0] * channels)
                assert len(scale) == len(bias) == channels and all(isinstance(x, float) for x in scale + bias)
                assert channels == 1 or metadata.get("hwc"), "several channels are only normalised as HWC"
                mixed = values.reshape(-1, channels)
                values = (mixed * np.array(scale, values.dtype) + np.array(bias, values.dtype)).reshape(-1)
        if channels is not None:
            assert values.size == int(np.prod(metadata["dims"])) * channels
        moves = {("hwc", "chw"), ("dhwc", "cdhw")}
        if channels and channels > 1 and (metadata.get("layout"), metadata.get("transpose")) in moves:
            values = np.moveaxis(values.reshape(*metadata["dims"], channels), -1, 0).reshape(-1)
        return values

    def packed(self, path: Path, sample: str) -> dict[str, np.ndarray]:
        """The fields of each `pack` group, one after the other."""
        fields = self.read(path, sample)
        groups: dict[str, list[tuple[int, str]]] = {}
        for name, metadata in self.fields.items():
            if "pack" in metadata:
                assert metadata["pack"] in ("datum", "label", "response")
                groups.setdefault(metadata["pack"], []).append((metadata["ordering"], name))
        out = {}
        for group, members in groups.items():
            parts = [fields[name] for _, name in sorted(members)]
            assert len({part.dtype for part in parts}) == 1, "packed fields have one type"
            out[group] = np.concatenate(parts)
        return out
