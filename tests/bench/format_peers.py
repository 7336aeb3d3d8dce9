"""Other formats, each through its own loader: globally shuffled batches of 128 in one process.

    python format_peers.py NAME FOLDER NUM

is a process that writes the format into FOLDER from the flat files `image.bin`, `scalars.bin` and `inputs.bin` beside
it, prints "ready", and then answers each line with a number of batches by the seconds that so many took. Peers that are
not among the project's dependencies are installed into a folder of their own (`peer_path`).
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 128
SHARD = 1000
FIELDS: dict[str, tuple[str, tuple[int, ...]]] = {
    "image": ("<f4", (64, 64, 4)),
    "scalars": ("<f8", (15,)),
    "inputs": ("<f8", (5,)),
}
_CACHE = Path(__file__).resolve().parents[2] / ".cache"
_LMDB = "lmdb==3.0.0"

Array = np.ndarray[Any, Any]
Batches = Iterator[Any]


def peer_path() -> list[str]:
    """Folders with the peers' packages, which are installed when they are not there, and with what tests share."""
    folder = _CACHE / _LMDB.replace("==", "-")
    if not folder.is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), _LMDB]
        subprocess.run(pip, check=True)
    subprocess.run([str(Path(__file__).resolve().parents[1] / "install_readers.sh")], check=True)
    return [
        str(folder),
        *map(str, _CACHE.glob("mds-*")),
        str(Path(__file__).resolve().parents[1] / "support"),
    ]


def flat(folder: Path, num: int) -> dict[str, Array]:
    return {
        name: np.memmap(folder / f"{name}.bin", dtype, "r", shape=(num, *shape))
        for name, (dtype, shape) in FIELDS.items()
    }


def _orders(num: int) -> Iterator[Array]:
    """Batches of one permutation after the other."""
    random = np.random.default_rng(0)
    while True:
        order = random.permutation(num)
        yield from (order[i : i + BATCH] for i in range(0, num - BATCH + 1, BATCH))


def _lmdb(folder: Path, num: int, data: dict[str, Array]) -> Batches:
    """A record of bytes for each sample, read without a copy into a batch that is used again."""
    import lmdb

    with lmdb.open(str(folder), map_size=num * 80_000 + (1 << 24)) as store:
        for lo in range(0, num, SHARD):
            with store.begin(write=True) as change:
                for i in range(lo, min(lo + SHARD, num)):
                    change.put(i.to_bytes(8, "big"), b"".join(data[name][i].tobytes() for name in FIELDS))
    transaction = lmdb.open(str(folder), readonly=True, lock=False, readahead=False).begin(buffers=True)
    out = {name: np.empty((BATCH, *shape), dtype) for name, (dtype, shape) in FIELDS.items()}
    for batch in _orders(num):
        for place, i in enumerate(batch.tolist()):
            record, offset = transaction.get(i.to_bytes(8, "big")), 0
            for values in out.values():
                row = values[place]
                row[...] = np.frombuffer(record, row.dtype, row.size, offset).reshape(row.shape)
                offset += row.nbytes
        yield out


def _h5py(folder: Path, num: int, data: dict[str, Array], chunked: bool) -> Any:
    import h5py

    with h5py.File(folder / "data.h5", "w") as file:
        for name, values in data.items():
            chunks = (1, *values.shape[1:]) if chunked else None
            file.create_dataset(name, values.shape, values.dtype, chunks=chunks)
            for lo in range(0, num, SHARD):
                file[name][lo : lo + SHARD] = values[lo : lo + SHARD]
    file = h5py.File(folder / "data.h5")
    return {name: file[name] for name in data}


def _h5py_sorted(folder: Path, num: int, data: dict[str, Array]) -> Batches:
    """Contiguous data sets, read by sorted lists of rows, which is what h5py asks for."""
    sets = _h5py(folder, num, data, chunked=False)
    for batch in _orders(num):
        order = np.argsort(batch)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        yield {name: found[batch[order]][back] for name, found in sets.items()}


def _h5py_chunks(folder: Path, num: int, data: dict[str, Array]) -> Batches:
    """A chunk for each sample, read one by one into a batch that is used again: many times as fast as by lists."""
    sets = _h5py(folder, num, data, chunked=True)
    out = {name: np.empty((BATCH, *shape), dtype) for name, (dtype, shape) in FIELDS.items()}
    for batch in _orders(num):
        for name, found in sets.items():
            for place, i in enumerate(batch):
                out[name][place] = found[i]
        yield out


def _npz(folder: Path, num: int, data: dict[str, Array]) -> Batches:
    """A file for each sample."""
    for i in range(num):
        np.savez(folder / f"{i}.npz", **{name: values[i] for name, values in data.items()})
    for batch in _orders(num):
        samples = [dict(np.load(folder / f"{i}.npz")) for i in batch]
        yield {name: np.stack([sample[name] for sample in samples]) for name in data}


def _webdataset(folder: Path, num: int, data: dict[str, Array]) -> Batches:
    """Tar files of 1,000 samples, through shards in random order and a shuffle buffer."""
    import webdataset as wds

    for lo in range(0, num, SHARD):
        with wds.TarWriter(str(folder / f"{lo // SHARD:05d}.tar")) as tar:
            for i in range(lo, min(lo + SHARD, num)):
                tar.write(
                    {"__key__": f"{i:08d}", **{f"{name}.npy": values[i] for name, values in data.items()}}
                )
    urls = sorted(map(str, folder.glob("*.tar")))
    names = [f"{name}.npy" for name in data]
    while True:
        pipeline = wds.WebDataset(urls, shardshuffle=len(urls), seed=1)
        yield from pipeline.shuffle(SHARD).decode().to_tuple(*names).batched(BATCH, partial=False)


def _mds(folder: Path, num: int, data: dict[str, Array]) -> Batches:
    """MosaicML's streaming, through its data set and torch's loader in this process."""
    from mds_reader import Finder

    sys.meta_path.insert(0, Finder())  # for the clouds' packages, which local files never touch
    from streaming import MDSWriter, StreamingDataset
    from torch.utils.data import DataLoader

    columns = {
        name: f"ndarray:{values.dtype.name}:{','.join(map(str, values.shape[1:]))}"
        for name, values in data.items()
    }
    with MDSWriter(out=str(folder / "mds"), columns=columns) as writer:
        for i in range(num):
            writer.write({name: np.ascontiguousarray(values[i]) for name, values in data.items()})
    dataset = StreamingDataset(local=str(folder / "mds"), shuffle=True, batch_size=BATCH)
    while True:
        yield from DataLoader(dataset, BATCH, num_workers=0, drop_last=True)


def _zarr(folder: Path, num: int, data: dict[str, Array]) -> Batches:
    """Arrays with a chunk for each sample, read by orthogonal indexing."""
    import zarr

    arrays = {}
    for name, values in data.items():
        made = zarr.create_array(
            folder / f"{name}.zarr",
            shape=values.shape,
            dtype=values.dtype,
            chunks=(1, *values.shape[1:]),
            compressors=None,
        )
        for lo in range(0, num, SHARD):
            made[lo : lo + SHARD] = values[lo : lo + SHARD]
        arrays[name] = zarr.open_array(folder / f"{name}.zarr", mode="r")
    for batch in _orders(num):
        yield {name: array.oindex[batch] for name, array in arrays.items()}


# name -> (what it is, its batches, how many of them a round measures)
PEERS: dict[str, tuple[str, Callable[[Path, int, dict[str, Array]], Batches], int]] = {
    "lmdb": ("LMDB", _lmdb, 150),
    "h5py_sorted": ("h5py, contiguous, sorted lists of rows", _h5py_sorted, 60),
    "h5py_chunks": ("h5py, a chunk per sample", _h5py_chunks, 30),
    "npz": ("one npz per sample", _npz, 20),
    "webdataset": ("WebDataset", _webdataset, 20),
    "mds": ("MosaicML MDS", _mds, 60),
    "zarr": ("Zarr 3, a chunk per sample", _zarr, 15),
}


class Peer:
    """One format in a process of its own."""

    def __init__(self, name: str, flat_files: Path, folder: Path, num: int, path: list[str]) -> None:
        folder.mkdir()
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
        command = [sys.executable, __file__, name, str(flat_files), str(folder), str(num)]
        self._process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.name, self.num_batches = name, PEERS[name][2]
        if self._read() != "ready":
            raise RuntimeError(f"{name} is not ready")

    def rate(self) -> float:
        """Samples per second of the next batches."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{self.num_batches}\n")
        self._process.stdin.flush()
        return self.num_batches * BATCH / float(self._read())

    def _read(self) -> str:
        """The next line that is for us; a library may print others."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("peer: "):
                return line[6:].strip()
        raise RuntimeError(f"the peer {self.name} ended: {self._process.wait()}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def peers(flat_files: Path, folder: Path, num: int, stack: ExitStack) -> list[Peer]:
    """All peers, ready."""
    path = peer_path()
    found = []
    for name in PEERS:
        peer = Peer(name, flat_files, folder / name, num, path)
        stack.callback(peer.close)
        found.append(peer)
    return found


def main() -> None:
    name, flat_files, folder, num = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
    batches = PEERS[name][1](folder, num, flat(flat_files, num))
    next(batches)
    print("peer: ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in itertools.islice(batches, int(line)):
            pass
        print(f"peer: {time.perf_counter() - start}", flush=True)


if __name__ == "__main__":
    main()
