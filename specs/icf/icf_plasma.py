"""Deuterium-tritium plasma: reactivity, emission, conduction, alpha ranges, and hot-spot profile integrals.

SI units, except temperatures, which are in keV throughout. README.md gives every equation and its source.
"""

from __future__ import annotations

from functools import cache
from math import gamma, pi

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]

KEV = 1.602176634e-16  # J
ION_MASS = 0.5 * (2.014101778 + 3.016049281) * 1.66053906892e-27  # kg, mean of D and T, electrons included
FUSION_ENERGY = 17.59e3 * KEV  # J per reaction
ALPHA_ENERGY = 3.52e3 * KEV  # J, the part that the charged product carries

# The four x-ray bands of the images, in keV. Their sum is "the x-rays" of every scalar named after them.
XRAY_BANDS = ((4.0, 8.0), (8.0, 12.0), (12.0, 20.0), (20.0, 40.0))

PROFILE_POWER = 0.4  # T(x) = T0 (1 - x^2)^0.4 of an ablating hot spot; pressure is uniform

_BREMSSTRAHLUNG = 5.34e-37  # W m^3 keV^-1/2: power = this * n^2 * sqrt(T), Z = 1
_SPITZER = 9.5e14  # W / (m keV^7/2): conductivity = this * T^5/2 / coulomb logarithm, Z = 1


def reactivity(temperature: Array) -> Array:
    """<sigma v> of D(t,n)alpha for a Maxwellian, in m^3/s (Bosch & Hale 1992, eqs. 12-14, table VII)."""
    t = np.asarray(temperature)
    fraction = t * (1.51361e-2 + t * (4.60643e-3 - t * 1.06750e-4))
    fraction = fraction / (1.0 + t * (7.51886e-2 + t * (1.35000e-2 + t * 1.36600e-5)))
    theta = t / (1.0 - fraction)
    xi = (34.3827**2 / (4.0 * theta)) ** (1.0 / 3.0)
    return 1e-6 * 1.17302e-9 * theta * np.sqrt(xi / (1_124_656.0 * t**3)) * np.exp(-3.0 * xi)


def profile_mean(power: float) -> float:
    """Volume average of (T/T0)**power over the hot spot."""
    b = 1.0 + PROFILE_POWER * power
    return 1.5 * gamma(1.5) * gamma(b) / gamma(1.5 + b)


def profile_chord(power: float) -> float:
    """Average of (T/T0)**power along a radius of the hot spot."""
    b = 1.0 + PROFILE_POWER * power
    return 0.5 * gamma(0.5) * gamma(b) / gamma(0.5 + b)


MEAN_INVERSE_TEMPERATURE = profile_mean(-1.0)
CHORD_INVERSE_TEMPERATURE = profile_chord(-1.0)


def coulomb_logarithm(density: Array, temperature: Array) -> Array:
    """Electron-ion Coulomb logarithm (NRL formulary, T > 10 eV), not below 2; `density` in electrons/m^3."""
    return np.maximum(24.0 - np.log(np.sqrt(1e-6 * density) / (1e3 * temperature)), 2.0)


def ablation_rate(radius: Array, density: Array, temperature: Array) -> Array:
    """Mass that heat conduction evaporates from the shell into the hot spot, in kg/s; from central values."""
    conductivity = _SPITZER / coulomb_logarithm(density, temperature)
    return (16.0 * pi / 25.0) * ION_MASS / KEV * conductivity * radius * temperature**2.5


def deposited_fraction(areal_density: Array, temperature: Array) -> Array:
    """Share of the alpha energy that stays in the hot spot (Krokhin & Rozanov 1973); rho R in kg/m^2."""
    t54 = temperature * np.sqrt(np.sqrt(temperature))
    alpha_range = 10.0 * 0.025 * t54 / (1.0 + 0.0082 * t54)
    tau = areal_density / alpha_range
    thick = np.maximum(tau, 0.5)
    return np.where(tau < 0.5, tau * (1.5 - 0.8 * tau), 1.0 - 0.25 / thick + 1.0 / (160.0 * thick**3))


def bremsstrahlung(density: Array, temperature: Array) -> Array:
    """Free-free power per volume at the centre, in W/m^3 (NRL formulary, Z = 1)."""
    return _BREMSSTRAHLUNG * density**2 * np.sqrt(temperature)


class ProfileTables:
    """Profile averages that depend on the central temperature only, tabulated on a logarithmic grid.

    burn         volume average of (T0/T)^2 <sigma v>(T), m^3/s
    burn_share   burn-weighted mean of T/T0
    xray         volume average of (T0/T)^(3/2) * share of the free-free spectrum inside the x-ray bands
    """

    def __init__(self, num: int = 4000, low: float = 0.05, high: float = 300.0) -> None:
        self._first = np.log(low)
        self._step = (np.log(high) - np.log(low)) / (num - 1)
        nodes, weights = np.polynomial.legendre.leggauss(96)
        x = 0.5 * (nodes + 1.0)
        weights = 1.5 * weights * x * x  # 3 x^2 dx on [0, 1]
        shape = (1.0 - x * x) ** PROFILE_POWER
        centre = np.exp(self._first + self._step * np.arange(num))
        t = centre[:, None] * shape
        burn = reactivity(t) / shape**2
        xray = (np.exp(-XRAY_BANDS[0][0] / t) - np.exp(-XRAY_BANDS[-1][1] / t)) / shape**1.5
        total = burn @ weights
        table = np.stack([np.log(total), (burn * shape) @ weights / total, np.log(xray @ weights)])
        self._table = np.ascontiguousarray(table.T)

    def __call__(self, temperature: Array) -> tuple[Array, Array, Array]:
        """(burn, burn_share, xray) at these central temperatures, linear between the grid points."""
        position = (np.log(temperature) - self._first) / self._step
        position = np.clip(position, 0.0, len(self._table) - 1.001)
        index = position.astype(np.intp)
        weight = (position - index)[:, None]
        row = self._table[index] * (1.0 - weight) + self._table[index + 1] * weight
        return np.exp(row[:, 0]), row[:, 1], np.exp(row[:, 2])


@cache
def profile_tables() -> ProfileTables:
    """The tables, built at the first use in a process."""
    return ProfileTables()
