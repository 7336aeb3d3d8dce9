"""What a shard file says of itself, found out in a process of its own: HDF5 may loop or crash over damaged headers.

Run as ``python -P -m merlin.shards.evidence.probe FILE``; prints one JSON document. Values are not read.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from merlin.errors import ShardError
from merlin.shards.reading.chunks import stored_chunks, stored_filters

TIMEOUT_S = 60.0


def probe(path: Path) -> dict[str, Any]:
    """Attributes of the file, and of every data set where its bytes are.

    Raises ShardError if the file cannot be read, or HDF5 does not come back from it.
    """
    command = [sys.executable, "-P", "-m", "merlin.shards.evidence.probe", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as e:
        raise ShardError(f"{path}: its headers are damaged: HDF5 does not come back from them") from e
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        why = lines[-1] if lines else f"HDF5 ended with {done.returncode}"
        raise ShardError(f"{path}: cannot be read: {why}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def describe(file: Any) -> dict[str, Any]:
    """What `probe` returns, of an open file."""
    import h5py

    datasets: list[dict[str, Any]] = []

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset):
            datasets.append({"name": name, **_describe(node)})

    file.visititems(visit)
    attributes = {name: plain(value) for name, value in file.attrs.items()}
    return {"attributes": attributes, "datasets": datasets}


def _describe(dataset: Any) -> dict[str, Any]:
    text = dataset.dtype.kind == "O"
    found: dict[str, Any] = {"dtype": "text" if text else dataset.dtype.str, "shape": list(dataset.shape)}
    if dataset.chunks is None:
        found["offset"] = dataset.id.get_offset()
        return found
    found["chunk"] = list(dataset.chunks)
    found["filters"] = stored_filters(dataset.id.get_create_plist())
    found["chunks"] = stored_chunks(dataset)
    return found


def plain(value: Any) -> Any:
    """The value of an attribute as Python has it."""
    return value.item() if hasattr(value, "item") else value


def main() -> None:
    import h5py
    import hdf5plugin  # noqa: F401 - filters are described without being applied

    with h5py.File(sys.argv[1], "r", locking=False) as file:
        sys.stdout.write(json.dumps(describe(file), default=str))


if __name__ == "__main__":
    main()
