"""Normalisation fitted to a data set, and its inverse for predictions.

normaliser = Normaliser.fit(ens, {"inputs": "minmax", "image": "log"}, cache="run/moments.json")
dataset = ShardDataset(ens, split="train", normalise=normaliser)
dataset.inverse("image", prediction)
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import asdict

from merlin.base.files import write_text
from merlin.base.records import FileFormat, as_kind, to_plain
from merlin.errors import ShardError, UsageError
from merlin.shards.ensemble import Ensemble
from merlin.shards.format.column import Column
from merlin.shards.format.regular_file import read_json
from merlin.shards.format.statistics import Statistics
from merlin.train.loading.columns import Columns, refuse_text
from merlin.train.loading.moments import Moments
from merlin.train.loading.scaling import Scaling

FORMAT = FileFormat("merlin-normalisation", 1)
_LEAST_SPREAD = 1e-6  # of the logarithm's argument, as a fraction of max - min, where values are not positive

MethodName = Literal["standard", "minmax", "scale", "log"]


class Method(Struct, frozen=True):
    """How to normalise a field.

    standard: to mean 0 and standard deviation 1. minmax: [minimum, maximum] to `range`. scale: divided by the mean,
    so that 0 stays 0 (intensities in images). log: log10(x + offset), then standard; the default offset is 0 where
    all values are positive, else it lifts the minimum to a millionth of the spread. Values below anything seen so
    far are raised to that least value before the logarithm is taken.
    """

    name: MethodName
    range: tuple[float, float] = (0.0, 1.0)
    offset: float | None = None

    @staticmethod
    def of(given: Any) -> Method:
        """A Method from a Method, its name, or a mapping of its attributes; UsageError for anything else."""
        values: Any = asdict(given) if isinstance(given, Method) else given
        if isinstance(given, str):
            values = {"name": given}
        known = get_args(MethodName)
        if not isinstance(values, Mapping) or values.get("name") not in known:
            raise UsageError(
                f"unknown normalisation {given!r}; known: {', '.join(known)}, or None to do without"
            )
        if unknown := values.keys() - set(Method.__struct_fields__):
            raise UsageError(f"normalisation {given!r}: unknown {', '.join(sorted(map(str, unknown)))}")
        lo, hi = _numbers(values.get("range", (0.0, 1.0)), 2, f"normalisation {given!r}: range")
        if lo == hi:
            raise UsageError(f"normalisation {given!r}: both ends of the range are {lo:g}")
        offset = values.get("offset")
        if offset is not None:
            (offset,) = _numbers((offset,), 1, f"normalisation {given!r}: offset")
        return Method(values["name"], (lo, hi), offset)


class Normaliser(Struct, frozen=True):
    """The scaling of every column that is normalised, by its path ("fields/image", "inputs/x")."""

    scalings: Mapping[str, Scaling]

    @classmethod
    def fit(
        cls,
        ens: Ensemble,
        methods: Any,
        *,
        over: str | None = None,
        among: Collection[Column] | None = None,
        cache: str | Path | None = None,
    ) -> Normaliser:
        """Choose scalings for columns of `ens`.

        `methods` is one method for both groups below, or a mapping from names to methods. A name is that of a
        field, an input or a parameter, or a group: "inputs" (with the parameters; all that are numbers), "fields",
        "scalars" (the fields of kind scalar); of fields a group means the real-valued ones. None excludes; a single
        name overrules a group. A field called like a group is meant by its path, as in "fields/scalars". Groups
        mean columns `among` these only, all by default.

        The statistics are the manifest's, of the whole data set, unless `over` names a split to compute them over.
        Those of logarithms, which the manifest does not have, are computed over the train split, if there is one.
        What was computed is kept in the file `cache`, which has to lie outside of the data set.

        Raises UsageError for an unknown name, a constant column, or one without statistics or finite values.
        """
        moments = Moments(ens, None if cache is None else Path(cache))
        chosen = _choose(Columns(ens), methods, among)
        return cls({c.path: _fit(c, method, moments, over) for c, method in chosen.items()})

    def of(self, column: Column) -> Scaling | None:
        return self.scalings.get(column.path)

    def to_json(self) -> dict[str, Any]:
        return {**FORMAT.head(), "scalings": to_plain(self.scalings)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Normaliser:
        """A normaliser from what `to_json` gave, also by way of JSON text; ShardError for anything else."""
        if wrong := FORMAT.mismatch(data):
            raise ShardError(f"not a readable normalisation: {wrong}")
        try:
            return cls(as_kind(data["scalings"], dict[str, Scaling]))
        except (KeyError, TypeError, ValueError) as e:
            raise ShardError(f"not a readable normalisation: {e!r}") from e

    def save(self, path: str | Path) -> None:
        write_text(Path(path), json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Normaliser:
        try:
            return cls.from_json(read_json(Path(path)))
        except (OSError, ValueError) as e:
            raise ShardError(f"{path}: not a readable normalisation: {e}") from e


def _numbers(given: Any, num: int, what: str) -> tuple[float, ...]:
    """So many finite numbers. Raises UsageError, which begins with `what`, for anything else."""
    try:
        found = tuple(map(float, given))
    except (TypeError, ValueError):
        found = ()
    if len(found) != num or not all(map(math.isfinite, found)):
        raise UsageError(f"{what} must be {'a finite number' if num == 1 else f'{num} finite numbers'}")
    return found


def _choose(columns: Columns, methods: Any, among: Collection[Column] | None) -> dict[Column, Method]:
    """Columns to normalise and how; groups first, so that single names overrule them."""
    labels = [c for c in (*columns.inputs.values(), *columns.parameters.values()) if c.dtype.kind in "iuf"]
    fields = [c for c in columns.fields.values() if c.dtype.kind == "f"]
    groups = {  # a later one overrules those before
        "fields": fields,
        "inputs": labels,
        "scalars": [column for column in fields if column.sample_kind.is_number],
    }
    if not isinstance(methods, Mapping) or "name" in methods:
        methods = {"inputs": methods, "fields": methods}
    meant = None if among is None else {column.path for column in among}
    chosen: dict[Column, Method | None] = {}
    for name in (*(n for n in groups if n in methods), *(n for n in methods if n not in groups)):
        method = None if methods[name] is None else Method.of(methods[name])
        if name in groups:
            found = [column for column in groups[name] if meant is None or column.path in meant]
        else:
            found = [columns.find(name)]
        refuse_text(found)
        if any(column.role == "edges" for column in found):
            raise UsageError(f"'{name}' holds numbers of nodes, which cannot be normalised")
        if any(column.is_complex for column in found):
            raise UsageError(f"'{name}' holds complex numbers, which cannot be normalised")
        chosen |= dict.fromkeys(found, method)
    return {column: method for column, method in chosen.items() if method is not None}


def _fit(column: Column, method: Method, moments: Moments, over: str | None) -> Scaling:
    plain = column.statistics if over is None else moments.of(column, over)
    if plain is None:  # earlier versions took none of parameters
        raise UsageError(
            f"the data set has no statistics of '{column.name}' to normalise it with; compute them over a "
            'split with Normaliser.fit(…, over="train"), or leave it out'
        )
    _require_spread(column, plain, over)
    if not plain.has_spread and method.name != "log":
        raise UsageError(
            f"'{column.name}' has values whose squares float64 cannot hold; normalise it with log"
        )
    axis = column.field.channel_axis_from_end if plain.num_channels > 1 else None
    num = plain.num_channels
    nothing = (None,) * num, (0.0,) * num
    pairs = list(zip(plain.min, plain.max, strict=True))
    match method.name:
        case "standard":
            return Scaling(plain.mean, tuple(1 / s for s in plain.std), *nothing, axis)
        case "minmax":
            lo, hi = method.range
            scale = tuple((hi - lo) / (b - a) for a, b in pairs)
            centre = tuple(a - lo / s for (a, _), s in zip(pairs, scale, strict=True))
            return Scaling(centre, scale, *nothing, axis)
        case "scale":
            if not all(plain.mean):
                raise UsageError(f"the mean of '{column.name}' is 0: nothing to divide it by; use standard")
            return Scaling((0.0,) * num, tuple(1 / m for m in plain.mean), *nothing, axis)
        case "log":
            lifts = [_lift(column, method, a, b) for a, b in pairs]
            offset, floor = tuple(o for o, _ in lifts), tuple(f for _, f in lifts)
            split = over or moments.usual_split
            logs = moments.of(column, split, Scaling((0.0,) * num, (1.0,) * num, offset, floor, axis))
            _require_spread(column, logs, split)
            return Scaling(logs.mean, tuple(1 / s for s in logs.std), offset, floor, axis)


def _lift(column: Column, method: Method, low: float, high: float) -> tuple[float, float]:
    """The logarithm's offset, and the least argument that it then has."""
    if method.offset is not None:
        if low + method.offset <= 0:
            raise UsageError(
                f"'{column.name}' reaches down to {low:g}: log needs an offset above {0 - low:g}"
            )
        return method.offset, low + method.offset
    if low > 0:
        return 0.0, low
    least = _LEAST_SPREAD * (high - low)
    return least - low, least


def _require_spread(column: Column, statistics: Statistics, split: str | None) -> None:
    """Raise UsageError for a column that has, in a channel, no finite values or only one value."""
    as_it_is = f'leave it as it is: normalise={{…, "{column.name}": None}}'
    if not all(statistics.count):
        channel = f"channel {statistics.count.index(0)} of " if statistics.num_channels > 1 else ""
        where = "" if split is None else f" in split '{split}'"
        raise UsageError(
            f"{channel}'{column.name}' has no finite values{where} to normalise it with; {as_it_is}"
        )
    constant = [
        (f"channel {i} is " if statistics.num_channels > 1 else "") + f"{low:g}"
        for i, (low, is_constant) in enumerate(zip(statistics.min, statistics.constant, strict=True))
        if is_constant
    ]
    if constant:
        raise UsageError(
            f"'{column.name}' is constant ({', '.join(constant)}) and cannot be normalised; {as_it_is}"
        )
