"""Built-in samples: designs of experiments from a method, a number, bounds and a seed.

The values depend on nothing but these four. Every method but latin_hypercube is made block by block, so that
a hundred million samples need no more memory than a block; a Latin hypercube permutes whole columns and is
made at once.

A design can be made from a row on (`first`), which is how a study gets more samples. The rows of sobol, halton,
uniform and normal are the ones a larger design has there. A Latin hypercube cannot be continued: the new rows are
one of their own, seeded by (seed, first). A grid has no more rows to give.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from merlin.base.files import replacing
from merlin.errors import UsageError
from merlin.spec.defaults import METHODS
from merlin.workspace.samples import save_samples

_BLOCK_ROWS = 1 << 18
_QUICK_SAMPLES = 20_000  # that are made to compare them
_SOBOL_SHORT = 1 << 30  # SciPy's direction numbers for longer sequences differ

Array = NDArray[np.float64]


class Design(Struct, frozen=True, kw_only=True):
    """What to sample.

    `bounds` gives (low, high) per label, for `normal` (mean, standard deviation). For `grid`, `num` is the
    number of points along each axis, or the total, which must then be a power of the number of labels; the
    grid includes both bounds, and its last label varies fastest.
    """

    method: str
    num: int | tuple[int, ...]
    bounds: Mapping[str, tuple[float, float]]
    seed: int = 0

    @property
    def num_samples(self) -> int:
        if self.method == "grid":
            return math.prod(self.axes)
        if not isinstance(self.num, int):
            raise UsageError(f"num is one number for the method {self.method}; a list is for grid")
        return self.num

    @property
    def axes(self) -> tuple[int, ...]:
        """Points along each axis of a grid."""
        if not isinstance(self.num, int):
            return tuple(self.num)
        side = round(self.num ** (1 / max(1, len(self.bounds))))
        return (side,) * len(self.bounds)


def check_design(design: Design, labels: Sequence[str]) -> None:
    """Raises UsageError with what to change."""
    if design.method not in METHODS:
        raise UsageError(f"unknown sampling method {design.method!r}; allowed: {', '.join(METHODS)}")
    missing = [label for label in labels if label not in design.bounds]
    extra = [label for label in design.bounds if label not in labels]
    if missing or extra:
        what = f"no bounds for {', '.join(missing)}" if missing else f"bounds for unknown {', '.join(extra)}"
        raise UsageError(f"{what}; the columns are {', '.join(labels)}")
    for label, (low, high) in design.bounds.items():
        if not (math.isfinite(low) and math.isfinite(high)):
            raise UsageError(f"bounds of {label}: [{low}, {high}] are not finite")
        if design.method == "normal" and high < 0:
            raise UsageError(f"bounds of {label}: the standard deviation {high} is negative")
        if design.method != "normal" and not low <= high:
            raise UsageError(f"bounds of {label}: {low} is above {high}")
    if design.method == "grid":
        _check_grid(design, labels)
    if design.num_samples < 1:
        raise UsageError(f"num is {design.num}; at least one sample is needed")


def _check_grid(design: Design, labels: Sequence[str]) -> None:
    if not isinstance(design.num, int):
        if len(design.num) != len(labels) or min(design.num) < 1:
            raise UsageError(
                f"num: {list(design.num)} needs one number of points for each of {', '.join(labels)}"
            )
    elif math.prod(design.axes) != design.num:
        side = design.axes[0]
        near = " or ".join(str(s ** len(labels)) for s in (side, side + 1) if s > 0)
        raise UsageError(
            f"a grid over {len(labels)} columns cannot have {design.num} points; "
            f"take {near}, or give num as a list with one number per column"
        )


def check_continuation(design: Design, first: int) -> None:
    """Raises UsageError if the design has no rows [first, num_samples) to give."""
    if design.method == "grid" and first:
        raise UsageError(
            "a grid cannot get more points: with another number of points along an axis all of them move; "
            "run a new study, or give the new points in a file (--samplesfile FILE --new-rows)"
        )
    if design.method == "sobol" and 0 < first <= _SOBOL_SHORT < design.num_samples:
        raise UsageError(
            f"a sobol design of more than {_SOBOL_SHORT:,} samples is another sequence than a smaller one; "
            "continue with the method uniform"
        )


def generate_samples(design: Design, labels: Sequence[str], first: int = 0) -> Array:
    """Rows [first, n) of the design as an array of shape (n - first, d), columns in the order of `labels`."""
    check_design(design, labels)
    check_continuation(design, first)
    return np.concatenate(list(_blocks(design, labels, first)))


def is_made_by(design: Design, labels: Sequence[str], rows: Array) -> bool:
    """False if the first rows of a samples file, (k, d) numbers, are not those of the design.

    Methods that take long to make, or to load SciPy for, are judged by their bounds alone.
    """
    if design.method in ("sobol", "halton") or design.num_samples > _QUICK_SAMPLES:
        bounds = np.array([design.bounds[label] for label in labels])
        return design.method == "normal" or bool(((rows >= bounds[:, 0]) & (rows <= bounds[:, 1])).all())
    made = generate_samples(design, labels)[: len(rows)]
    return made.shape == rows.shape and bool((made == rows).all())


def write_samples(
    path: Path,
    design: Design,
    labels: Sequence[str],
    first: int = 0,
    *,
    also: Callable[[memoryview], None] | None = None,
) -> int:
    """Write rows [first, n) of the design to a samples file, atomically, ``.npy`` by blocks.

    `also` gets the bytes of the rows of a ``.npy`` file, in a thread of its own. Returns the number of rows written.
    """
    check_design(design, labels)
    check_continuation(design, first)
    num = design.num_samples - first
    if path.suffix.lower() != ".npy":
        save_samples(path, generate_samples(design, labels, first), labels)
        return num
    header = {"descr": "<f8", "fortran_order": False, "shape": (num, len(labels))}
    with (
        ThreadPoolExecutor(1) as beside,
        replacing(path, durable_name=False) as temporary,
        temporary.open("xb") as file,
    ):
        np.lib.format.write_array_header_1_0(file, header)
        passed = None
        for block in _blocks(design, labels, first):
            data = np.ascontiguousarray(block, dtype="<f8").reshape(-1).view(np.uint8).data
            if passed is not None:
                passed.result()
            passed = None if also is None else beside.submit(also, data)
            file.write(data)
    return num


def _blocks(design: Design, labels: Sequence[str], first: int = 0) -> Iterator[Array]:
    """Rows [first, n), block by block."""
    bounds = np.array([design.bounds[label] for label in labels], dtype=np.float64)
    draw = _drawer(design, bounds[:, 0], bounds[:, 1], first)
    num = design.num_samples
    block_rows = num if design.method == "latin_hypercube" else _BLOCK_ROWS
    for lo in range(first, num, block_rows):
        yield draw(lo, min(lo + block_rows, num))


def _drawer(design: Design, low: Array, high: Array, first: int) -> Callable[[int, int], Array]:
    """A function that makes rows [lo, hi); it must be called for consecutive ranges, from `first` on."""
    if design.method == "grid":
        points = [np.linspace(a, b, n) for a, b, n in zip(low, high, design.axes, strict=True)]
        return lambda lo, hi: _grid_rows(points, lo, hi)
    if design.method == "uniform":
        bits = np.random.PCG64(design.seed)
        bits.advance(first * len(low))  # a number takes one step of the generator
        uniform = np.random.Generator(bits)
        return lambda lo, hi: _scaled(uniform.random((hi - lo, len(low))), high - low, low)
    if design.method == "normal":
        normal = np.random.default_rng(design.seed)
        for lo in range(0, first, _BLOCK_ROWS):  # a number takes one step or several: they have to be drawn
            normal.standard_normal((min(_BLOCK_ROWS, first - lo), len(low)))
        return lambda lo, hi: _scaled(normal.standard_normal((hi - lo, len(low))), high, low)
    if design.method == "latin_hypercube":
        # the first child of the seed, which is what SciPy draws from
        seed = np.random.SeedSequence([design.seed, first] if first else design.seed, spawn_key=(0,))
        cube = np.random.default_rng(seed)
        return lambda lo, hi: _scaled(_hypercube_rows(cube, hi - lo, len(low)), high - low, low)
    engine = _engine(design, len(low), np.random.default_rng(design.seed))
    for lo in range(0, first, _BLOCK_ROWS):
        engine.fast_forward(min(_BLOCK_ROWS, first - lo))
    return lambda lo, hi: _scaled(_unit_rows(engine, hi - lo), high - low, low)


def _scaled(rows: Array, factor: Array, offset: Array) -> Array:
    """offset + rows * factor, in place."""
    rows *= factor
    rows += offset
    return rows


def _grid_rows(points: list[Array], lo: int, hi: int) -> Array:
    indices = np.unravel_index(np.arange(lo, hi), [len(axis) for axis in points])
    return np.stack([axis[index] for axis, index in zip(points, indices, strict=True)], axis=1)


def _hypercube_rows(generator: np.random.Generator, num: int, dimensions: int) -> Array:
    """(num, dimensions) in (0, 1], of which each column has one number in each of `num` equal intervals.

    McKay, Beckman, Conover, Technometrics 21, 239 (1979). These are the numbers that `scipy.stats.qmc.LatinHypercube`
    draws, without the second that it takes to import it.
    """
    places = generator.uniform(size=(num, dimensions))
    intervals = np.tile(np.arange(1, num + 1), (dimensions, 1))
    for column in intervals:
        generator.shuffle(column)
    rows: Array = (intervals.T - places) / num
    return rows


def _engine(design: Design, dimensions: int, generator: np.random.Generator) -> Any:
    from scipy.stats import qmc

    is_sobol = design.method == "sobol"
    make: Any = qmc.Sobol if is_sobol else qmc.Halton
    extra = {"bits": 64} if is_sobol and design.num_samples > _SOBOL_SHORT else {}
    try:
        return make(d=dimensions, rng=generator, **extra)
    except TypeError:  # SciPy before 1.15 calls it seed
        return make(d=dimensions, seed=generator, **extra)


def _unit_rows(engine: Any, num: int) -> Array:
    with warnings.catch_warnings():
        # Sobol points balance best for powers of two; the user's number of samples is what counts here.
        warnings.filterwarnings("ignore", message="The balance properties")
        return np.asarray(engine.random(num), dtype=np.float64)
