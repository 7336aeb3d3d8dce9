"""Globally shuffled batches of 128 from warm shards, one process, against a bare memmap and other formats.

Each sample has 5 inputs, 15 scalars and a 64 x 64 x 4 float32 image. The functions return rates by name, one for each
round; the rounds are interleaved, so that ratios of neighbours hold when the machine's speed drifts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from format_peers import BATCH, PEERS, flat, peers
from measure import fresh, local_run, median, only_workspace, ratio, run
from report import Row

import merlin

INPUTS = [f"X{k}" for k in range(5)]
SCALARS = [f"s{k:02d}" for k in range(15)]
COLUMNS = ["image", *SCALARS, *INPUTS]
_TURN = 4  # batches

Array = np.ndarray[Any, Any]
Rates = dict[str, list[float]]  # samples per second, one for each round


def make_data_set(folder: Path, num: int, compression: str = "none") -> Path:
    """A finished data set of `num` samples, 1000 a shard, written by a run."""
    folder = fresh(folder)
    run(local_run("reading", num, f"COMPRESSION={compression}"), folder)
    return only_workspace(folder) / "collect"


def shuffled(num: int) -> list[Array]:
    order = np.random.default_rng(0).permutation(num)
    return [order[i : i + BATCH] for i in range(0, num - BATCH + 1, BATCH)]


def _warm(*groups: list[Path]) -> None:
    """Read files into the page cache, all in the same way: how a page came there decides how fast it is read.

    One large file, read in order, comes in large pages, which is the best that can happen to it. Groups take turns.
    """
    streams = [_pieces(group) for group in groups]
    while streams:
        streams = [stream for stream in streams if next(stream, None) is not None]


def _pieces(files: list[Path]) -> Iterator[int]:
    """Read files that are in no cache, piece by piece."""
    for path in filter(Path.is_file, files):
        with open(path, "rb", buffering=0) as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while piece := file.read(1 << 20):
                yield len(piece)


def _interleaved(readers: dict[str, tuple[Callable[[Array], Any], list[Array]]], rounds: int) -> Rates:
    """Each reader over its batches, a few at a time in turn, in an order that goes round; the first round is not
    counted."""
    rates: Rates = {name: [] for name in readers}
    names = list(readers)
    most = max(len(batches) for _, batches in readers.values())
    for number in range(rounds + 1):
        seconds, num = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
        for turn, lo in enumerate(range(0, most, _TURN)):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                read, batches = readers[name]
                start = time.perf_counter()
                for batch in batches[lo : lo + _TURN]:
                    read(batch)
                seconds[name] += time.perf_counter() - start
                num[name] += len(batches[lo : lo + _TURN]) * BATCH
        if number:
            for name in names:
                rates[name].append(num[name] / seconds[name])
    return rates


def uncompressed(tmp: Path, rounds: int, num: int) -> Rates:
    """ours; memmap: `np.take` of three memory-mapped files into arrays that are used again; and the other formats."""
    ens = merlin.open_shards(make_data_set(tmp / "plain", num))
    batches = shuffled(num)
    out = ens.allocate(BATCH, COLUMNS)
    mine = (lambda batch: ens.batch(batch, COLUMNS, out=out), batches)
    # no two readers of the same bytes: the second would find them in the processor's cache
    readers: dict[str, tuple[Callable[[Array], Any], list[Array]]] = {
        "ours": mine,
        "memmap": (_memmap(ens, tmp), batches),
    }
    with ExitStack() as stack:
        found = peers(tmp, fresh(tmp / "peers"), num, stack)
        _warm(list(tmp.glob("*.bin")), list(tmp.glob("peers-*/**/*")))  # shards are as the run left them
        rates = _interleaved(readers, rounds)
        for number in range(rounds + 1):
            for peer in found:
                theirs, ours = peer.rate(), _interleaved({"ours": mine}, 1)["ours"][0]
                if number:
                    rates.setdefault(peer.name, []).append(theirs)
                    rates.setdefault(f"ours beside {peer.name}", []).append(ours)
    return rates


def shuffled_batches(tmp: Path, rounds: int, num: int) -> list[Row]:
    """The rows of docs/benchmarks.md about uncompressed shards."""
    rates = uncompressed(tmp, max(rounds, 5), num)
    what = f"shuffled batches of {BATCH} from {num:,} warm samples, one process, against "
    share = ratio(rates["ours"], rates["memmap"])
    rows = [_row(what + "a bare memmap gather", rates["ours"], rates["memmap"], f"{share:.2f}×", "≥ 0.9×")]
    per_sample = 64 * 64 * 4 * 4 + 20 * 8
    share_of_memory = per_sample * median(rates["ours"]) / _copy_bandwidth()
    rows.append(
        Row("the same as a fraction of one core's copy bandwidth", f"{share_of_memory:.2f}", floor="reported")
    )
    for name, (title, _, _) in PEERS.items():
        ours, theirs = rates[f"ours beside {name}"], rates[name]
        floor = "≥ 1.8×" if name == "lmdb" else "≥ 10×"
        rows.append(_row(what + title, ours, theirs, f"{ratio(ours, theirs):.1f}×", floor))
    return rows


def compressed_batches(tmp: Path, rounds: int, num: int) -> list[Row]:
    """Rates against Zarr with the same codec, and how small the files are."""
    rows = []
    for codec in ("zstd", "blosc2"):
        rates = compressed(tmp, max(rounds, 5), num, codec)
        with merlin.open_shards(next(iter(tmp.glob(f"{codec}-*/*/collect")))) as ens:
            stored = sum(shard.size_bytes for shard in ens.manifest.shards)
        ours, theirs = (
            stored / (num * (64 * 64 * 4 * 4 + 20 * 8)),
            _size(tmp / f"{codec}.zarr") / (num * 64 * 64 * 4 * 4),
        )
        what = f"shuffled batches of {BATCH} images, {codec}, against Zarr 3 with the same codec"
        rows.append(
            _row(what, rates["ours"], rates["zarr"], f"{ratio(rates['ours'], rates['zarr']):.1f}×", "≥ 2×")
        )
        one = rates["ours, one thread"]
        rows.append(
            _row("the same in one thread", one, rates["zarr"], f"{ratio(one, rates['zarr']):.1f}×", "")
        )
        rows.append(Row(f"size of {codec} files over raw bytes", f"{ours:.2f}", f"{theirs:.2f}"))
    return rows


def _copy_bandwidth() -> float:
    """Bytes per second of one core copying memory (read + write counted once)."""
    source = np.ones(64 << 20, dtype=np.uint8)
    copy = np.empty_like(source)
    seconds = []
    for _ in range(9):
        start = time.perf_counter()
        np.copyto(copy, source)
        seconds.append(time.perf_counter() - start)
    return len(source) / median(seconds)


def _row(what: str, ours: list[float], theirs: list[float], times: str, floor: str) -> Row:
    return Row(what, f"{median(ours):,.0f}/s", f"{median(theirs):,.0f}/s", times, floor)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _memmap(ens: Any, tmp: Path) -> Callable[[Array], Any]:
    """A gather from files of rows into arrays that start on a cache line."""
    from merlin.shards.format.aligned import aligned_empty

    num = len(ens)
    if not (tmp / "inputs.bin").exists():
        with open(tmp / "image.bin", "wb") as file:
            for lo in range(0, num, 1000):
                ens["image"][lo : lo + 1000].tofile(file)
        np.stack([ens[name][:] for name in SCALARS], axis=1).tofile(tmp / "scalars.bin")
        ens.inputs.array().tofile(tmp / "inputs.bin")
    files = flat(tmp, num).values()
    pairs = [(rows, aligned_empty((BATCH, *rows.shape[1:]), rows.dtype)) for rows in files]

    def read(batch: Array) -> None:
        for rows, out in pairs:
            np.take(rows, batch, axis=0, out=out, mode="clip")  # "raise" copies once more

    return read


def compressed(tmp: Path, rounds: int, num: int, codec: str) -> Rates:
    """Images alone. ours, ours in one thread; zarr: `oindex` of one array with the same codec and a chunk per image.

    Nothing is found in a cache: ours is limited to a tenth of the images.
    """
    path = make_data_set(tmp / codec, num, codec)
    batches = shuffled(num)
    readers: dict[str, tuple[Callable[[Array], Any], list[Array]]] = {}
    for name, threads in (("ours", None), ("ours, one thread", 1)):
        ens = merlin.open_shards(path, threads=threads, cache_bytes=num * 6553)
        out = ens.allocate(BATCH, ["image"])
        readers[name] = (lambda batch, ens=ens, out=out: ens.batch(batch, ["image"], out=out), batches)  # type: ignore[misc]
    zarr = _zarr(merlin.open_shards(path), tmp / f"{codec}.zarr", codec)
    readers["zarr"] = (zarr, batches[: max(1, len(batches) // 10)])
    return _interleaved(readers, rounds)


def _zarr(ens: Any, path: Path, codec: str) -> Callable[[Array], Any]:
    import zarr
    from zarr.codecs import BloscCodec, ZstdCodec

    codecs = {"zstd": ZstdCodec(level=3), "blosc2": BloscCodec(cname="zstd", clevel=5, shuffle="shuffle")}
    image = ens["image"]
    made = zarr.create_array(
        path, shape=image.shape, dtype="f4", chunks=(1, *image.shape[1:]), compressors=[codecs[codec]]
    )
    for lo in range(0, len(image), 1000):
        made[lo : lo + 1000] = image[lo : lo + 1000]
    array = zarr.open_array(path, mode="r")
    return lambda batch: array.oindex[batch]
