"""Numbers as they are drawn, and axes that fit them: linear or logarithmic, few ticks, powers of ten in the label."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct

from merlin.shards.format.manifest_file import FieldInfo
from merlin.shards.format.segments import Array

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DECADES = 2.0  # a range of more than this many decades may want a logarithmic axis
_CROWDED = 0.2  # and gets one if the lower half of the values fills less than this share of a linear one
_MAX_BINS = 60
_FEW = 12  # whole numbers that get a bar each, however few samples there are
_MOST_DRAWN = 1e280  # ranges, sums and margins of such values are finite
_MOST_LOGARITHMIC = 1e150  # the ticks beyond such values are finite
CHARACTER = 0.078  # inches, of the labels' font


def drawn(values: Any) -> Array:
    """Real numbers as they are, the magnitudes of complex ones; NaN for what is too large to be drawn."""
    found = np.asarray(values)
    with np.errstate(over="ignore"):  # a magnitude may be infinite
        found = np.abs(found) if found.dtype.kind == "c" else found
    if found.dtype.kind == "f" and found.dtype.itemsize >= 8:
        return np.where(np.abs(found) > _MOST_DRAWN, np.nan, found)
    return found


def drawn_name(info: FieldInfo) -> str:
    """The name of a field, between bars if magnitudes are drawn."""
    return f"|{info.name}|" if np.dtype(info.dtype).kind == "c" else info.name


def signed(value: float) -> str:
    """A correlation: "+0.42", "−0.10"."""
    return f"{value:+.2f}".replace("-", "−")


def power(exponent: int) -> str:
    """ "10¹⁵" """
    return "10" + str(exponent).translate(_SUPERSCRIPTS)


def number(value: float, digits: int = 3) -> str:
    """A number for people: "3.14", "2.5×10¹⁵", "–" if it is not finite."""
    if not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    exponent = math.floor(math.log10(abs(value)))
    if -4 <= exponent < 6:
        return f"{value:.{max(digits, exponent + 1)}g}".replace("-", "−")
    mantissa, _, written = f"{value:.{digits - 1}e}".partition("e")
    if "." in mantissa:
        mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa}×{power(int(written))}".replace("-", "−")


class Scale(Struct, frozen=True):
    """How one quantity is shown: its limits, and whether it runs logarithmically."""

    lo: float
    hi: float
    is_log: bool = False
    is_whole: bool = False  # whole numbers: each bin has to hold equally many of them

    @property
    def exponent(self) -> int:
        """The power of ten that a linear axis leaves to its label."""
        reach = max(abs(self.lo), abs(self.hi))
        if self.is_log or reach < 1 / _MOST_DRAWN:
            return 0
        exponent = math.floor(math.log10(reach))
        return 0 if -3 <= exponent < 5 else exponent

    def edges(self, num_values: int) -> Array:
        """Edges of histogram bins."""
        bins = int(min(_MAX_BINS, max(8, 2.5 * max(num_values, 1) ** (1 / 3))))
        if self.is_whole:
            span = math.ceil(self.hi) - math.floor(self.lo) + 1
            width = 1 if span <= max(bins, _FEW) else -(-span // bins)
            return math.floor(self.lo) - 0.5 + width * np.arange(-(-span // width) + 1)
        return self.spaced(bins)

    def spaced(self, num: int) -> Array:
        """Edges (num + 1,) of bins that look equally wide."""
        return (np.geomspace if self.is_log else np.linspace)(self.lo, self.hi, num + 1)


def choose_scale(values: Array) -> Scale:
    """Limits that show every finite value; logarithmic if they are positive, span decades and would crowd at
    the lower end of a linear axis."""
    values = values[np.isfinite(values)]
    if not values.size:
        return Scale(0.0, 1.0)
    lo, hi = float(values.min()), float(values.max())
    if lo == hi:
        margin = abs(lo) * 0.05 or 0.5
        return Scale(lo - margin, hi + margin)
    if lo > 1 / _MOST_LOGARITHMIC and hi < _MOST_LOGARITHMIC and math.log10(hi / lo) > _DECADES:
        low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
        if high > 10 * low and middle - low < _CROWDED * (high - low):
            return Scale(lo, hi, is_log=True)
    whole = hi - lo < 1e9 and bool(np.all(values == np.round(values)))
    return Scale(lo, hi, is_whole=whole)


def label(name: str, units: str, scale: Scale | None = None, room: float = 9.0) -> str:
    """ "yield (10¹⁵ J)": the name, with units and what the ticks leave out; in two lines, and cut, if it would be
    longer than `room` inches."""
    words = [] if units in ("", "1") else [units]
    if scale is not None and scale.exponent:
        words.insert(0, power(scale.exponent))
    most = max(4, int(room / CHARACTER))
    if not words:
        return short(name, most)
    unit = f"({' '.join(words)})"
    fits = len(name) + 1 + len(unit) <= most
    return f"{name} {unit}" if fits else f"{short(name, most)}\n{short(unit, most)}"


def short(text: str, most: int) -> str:
    """The text with its middle left out if it has more than `most` characters."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def apply(axis: Any, scale: Scale, *, ticks: int = 4, margin: float = 0.03) -> None:
    """Set up an axis (`axes.xaxis` or `axes.yaxis`)."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    limits = getattr(axis.axes, f"set_{axis.axis_name}lim")
    if scale.is_log:
        getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
        widen = (scale.hi / scale.lo) ** margin
        limits(scale.lo / widen, scale.hi * widen)
        axis.set_major_locator(LogLocator(numticks=ticks + 1))
        axis.set_major_formatter(FuncFormatter(lambda value, _: power(round(math.log10(value)))))
        axis.set_minor_formatter(NullFormatter())
        axis.set_tick_params(which="minor", length=0)
        return
    widen = max((scale.hi - scale.lo) * margin, 0.5 if scale.is_whole else 0.0)
    limits(scale.lo - widen, scale.hi + widen)
    axis.set_major_locator(MaxNLocator(ticks, steps=[1, 2, 2.5, 5, 10], integer=scale.is_whole))
    axis.set_major_formatter(_plain_formatter(scale.exponent))


def _plain_formatter(exponent: int) -> Any:
    """Values divided by a power of ten, all with as many decimals as the ticks need."""
    from matplotlib.ticker import Formatter

    class Plain(Formatter):
        def __call__(self, value: float, position: int | None = None) -> str:
            return self.format_ticks([value])[0]

        def format_ticks(self, values: list[float]) -> list[str]:
            scaled = [value / 10.0**exponent for value in values]
            for decimals in range(12):
                if all(abs(round(v, decimals) - v) <= 1e-9 * max(1e-3, abs(v)) for v in scaled):
                    break
            return [f"{v + 0.0:.{decimals}f}".replace("-", "−") for v in scaled]

    return Plain()
