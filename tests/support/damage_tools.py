"""Ways to break a data set, and what a break does to its values, found without the code under test."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from merlin.ledger.format import frame
from merlin.ledger.segments import Segment, own_segment_paths
from merlin.shards.format.shard_info import read_info


def flip(path: Path, offset: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= bit
    path.write_bytes(content)


def values_by_row(path: Path) -> dict[int, tuple]:
    """Everything that a shard holds of each row, by row number."""
    found: dict[int, list] = {}
    with h5py.File(path) as file:
        rows, fields = file["row"][()].tolist(), file["fields"]
        names: list[str] = []
        fields.visititems(lambda name, node: names.append(name) if isinstance(node, h5py.Dataset) else None)
        for name in sorted(names):
            if name.endswith("/offsets"):
                continue
            values = fields[name][()]
            if name.endswith("/values"):
                ends = fields[name.removesuffix("values") + "offsets"][()]
                pairs = zip(ends.tolist(), ends[1:].tolist(), strict=False)
                values = [values[a:b] if 0 <= a <= b <= len(values) else b"nowhere" for a, b in pairs]
            for row, value in zip(rows, values, strict=True):
                found.setdefault(row, []).append(
                    value if isinstance(value, bytes) else np.asarray(value).tobytes()
                )
    return {row: tuple(values) for row, values in found.items()}


def changed_rows(before: dict[int, tuple], after: dict[int, tuple]) -> list[int]:
    return sorted(row for row in before if before[row] != after.get(row))


def extents_of(directory: Path, shard: int, prefix: str = "") -> list[tuple[str, int, int]]:
    """(data set, offset, size) of all stored values of a shard."""
    info = read_info(directory / f"shard_{shard:05d}.json")
    return [
        (d.name, e.offset, e.nbytes) for d in info.datasets for e in d.extents if d.name.startswith(prefix)
    ]


def numbers(ranges) -> list[int]:
    return [i for a, b in ranges for i in range(a, b)]


def lost(report) -> list[int]:
    """Rows that the report wants to run again."""
    return sorted({row for p in report.problems for row in numbers(p.lost)})


def edit_manifest(directory: Path, change) -> None:
    """Change the manifest's JSON, and make its digest fit again."""
    from merlin.shards.format.manifest_file import sealed

    content = json.loads((directory / "manifest.json").read_text())
    for key in ("digest", "format", "version"):
        del content[key]
    change(content)
    (directory / "manifest.json").write_text(sealed(content))


def lose_records(ledger: Path, instance: str, task: int) -> None:
    """Take the records of a task out of a ledger, as if its writer had never written them."""
    for segment in map(Segment, own_segment_paths(ledger)):
        kept = [r for r in segment.read_new() if r.instance != instance or not r.lo <= task < r.hi]
        data = b"".join(frame(bytes(payload)) for _, payload in segment.payloads(kept))
        assert segment.header is not None
        segment.path.write_bytes(segment.header.to_bytes() + data)
