"""What an experiment would report of an implosion: scalars, a burn history, the state at the x-ray bang."""

from __future__ import annotations

import icf_implosion as implosion
import icf_plasma as plasma
import numpy as np
from icf_images import Snapshot
from icf_implosion import Trace
from icf_plasma import Array

HISTORY_POINTS = 128
HISTORY_HALF_WIDTH = 0.2e-9  # s, on either side of the neutron bang time

NANO, MICRO, GBAR, KILO = 1e-9, 1e-6, 1e14, 1e3


class Peak:
    """The maximum of each column of `values` (steps, n): a parabola through the three points around it."""

    def __init__(self, time: Array, values: Array) -> None:
        self._columns = np.arange(values.shape[1])
        self._index = np.clip(values.argmax(axis=0), 1, len(values) - 2)
        t0, t1, t2 = self._around(time)
        v0, v1, v2 = self._around(values)
        slope_left, slope_right = (v1 - v0) / (t1 - t0), (v2 - v1) / (t2 - t1)
        curvature = (slope_right - slope_left) / (t2 - t0)
        with np.errstate(divide="ignore", invalid="ignore"):
            vertex = 0.5 * (t0 + t1) - 0.5 * slope_left / curvature
        self.time = np.where(curvature < 0.0, np.clip(vertex, t0, t2), t1)
        self._weights = _lagrange(t0, t1, t2, self.time)
        self.value = self.at(values)

    def at(self, values: Array) -> Array:
        """Another history (steps, n) at the time of the peak."""
        return sum(weight * value for weight, value in zip(self._weights, self._around(values), strict=True))

    def _around(self, values: Array) -> tuple[Array, Array, Array]:
        return tuple(values[self._index + k, self._columns] for k in (-1, 0, 1))


def _lagrange(t0: Array, t1: Array, t2: Array, t: Array) -> tuple[Array, Array, Array]:
    return (
        (t - t1) * (t - t2) / ((t0 - t1) * (t0 - t2)),
        (t - t0) * (t - t2) / ((t1 - t0) * (t1 - t2)),
        (t - t0) * (t - t1) / ((t2 - t0) * (t2 - t1)),
    )


def full_width(time: Array, log_rate: Array, log_peak: Array) -> Array:
    """Full width at half maximum of each column, with the crossings interpolated in the logarithm."""
    half = log_peak - np.log(2.0)
    above = log_rate >= half
    first = np.maximum(above.argmax(axis=0), 1)
    last = np.minimum(len(time) - 1 - above[::-1].argmax(axis=0), len(time) - 2)
    return _crossing(time, log_rate, half, last) - _crossing(time, log_rate, half, first - 1)


def _crossing(time: Array, values: Array, level: Array, index: Array) -> Array:
    """When each column passes its level between `index` and the next point."""
    column = np.arange(values.shape[1])
    v0, v1 = values[index, column], values[index + 1, column]
    t0, t1 = time[index, column], time[index + 1, column]
    return t0 + (t1 - t0) * (level - v0) / (v1 - v0)


def scalars(trace: Trace) -> tuple[dict[str, Array], Peak]:
    """The fifteen scalars, in the units of README.md, and the peak of the x-ray emission."""
    log_neutrons, log_xrays = np.log(trace.neutron_rate), np.log(trace.xray_power)
    neutrons, xrays = Peak(trace.time, log_neutrons), Peak(trace.time, log_xrays)
    hottest, stiffest = Peak(trace.time, trace.temperature), Peak(trace.time, trace.pressure)
    smallest = Peak(trace.time, -trace.radius)
    end = trace.final
    values = {
        "BT": neutrons.time / NANO,
        "BTx": xrays.time / NANO,
        "BWn": full_width(trace.time, log_neutrons, neutrons.value) / NANO,
        "BWx": full_width(trace.time, log_xrays, xrays.value) / NANO,
        "BAt": end[implosion.NT] / end[implosion.N],
        "BApressure": end[implosion.NP] / end[implosion.N] / GBAR,
        "MAXt": hottest.value,
        "tMAXt": hottest.time / NANO,
        "MAXpressure": stiffest.value / GBAR,
        "tMAXpressure": stiffest.time / NANO,
        "MINradius": -smallest.value / MICRO,
        "tMINradius": smallest.time / NANO,
        "Yn": end[implosion.N],
        "Ye": end[implosion.N] * plasma.FUSION_ENERGY / KILO,
        "Yx": end[implosion.X] / KILO,
    }
    return values, xrays


def burn_history(trace: Trace, bang_time: Array) -> Array:
    """(n, 128) float32: neutrons per ns within 0.2 ns of the bang time; zero outside the simulated time."""
    offset = np.linspace(-HISTORY_HALF_WIDTH, HISTORY_HALF_WIDTH, HISTORY_POINTS)
    log_rate = np.log(trace.neutron_rate * NANO)
    history = np.empty((len(bang_time), HISTORY_POINTS))
    for i, middle in enumerate(bang_time):
        history[i] = np.interp(middle + offset, trace.time[:, i], log_rate[:, i], left=-np.inf, right=-np.inf)
    return np.exp(history).astype(np.float32)


def snapshot(trace: Trace, peak: Peak) -> Snapshot:
    """The hot spot at the time of a peak."""
    return Snapshot(
        radius=peak.at(trace.radius),
        pressure=peak.at(trace.pressure),
        temperature=peak.at(trace.temperature),
        modes=np.stack([peak.at(trace.shape[:, k]) for k in range(trace.shape.shape[1])]),
    )
