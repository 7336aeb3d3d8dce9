"""The deceleration of a thin shell by its hot spot, with low modes of the shell, as one system of equations.

State of one sample (rows of the array `y`), SI units, temperatures in keV:

    R V            mean radius and its velocity
    q_j w_j        normal modes of the shell shape and their velocities, two for each spherical harmonic
    E M            internal energy and mass of the hot spot
    N X A          neutrons made, x-ray energy radiated, alpha energy deposited
    NT NP          time integrals of neutron rate * burn temperature and neutron rate * pressure

Everything works on (rows, n) arrays: n samples advance together, each with its own time step.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import pi

import icf_plasma as plasma
import numpy as np
from icf_plasma import Array

DEGREES = (1, 2, 4)  # l of the modes, in the order of Design.modes
_L = np.repeat(np.array(DEGREES, dtype=float), 2)
_GROWING = np.array([True, False] * len(DEGREES))
NUM_MODES = len(_L)
# Normal modes of a thin shell under uniform pressure: q'' = growth * (4 pi R P / M) * q, README section 3.
GROWTH = np.where(_GROWING, _L + 2.0, 1.0 - _L)[:, None]
INERTIA = np.where(_GROWING, (2 * _L + 1) / (_L + 1), (2 * _L + 1) / _L)[:, None]
START_SHARE = np.where(_GROWING, (_L + 1) / (2 * _L + 1), _L / (2 * _L + 1))[:, None]

R, V = 0, 1
Q = slice(2, 2 + NUM_MODES)
W = slice(Q.stop, Q.stop + NUM_MODES)
E, M, N, X, A, NT, NP = range(W.stop, W.stop + 7)
NUM_ROWS = NP + 1

MAX_STEPS = 4000
MAX_TIME = 5e-9


@dataclass(frozen=True, slots=True)
class Design:
    """What is imploded: arrays of n samples, or scalars, at the start of deceleration (t = 0)."""

    velocity: Array  # m/s, inward
    pressure: Array  # Pa, of the hot spot
    modes: Array  # (3, n) relative amplitudes of the harmonics (1,0), (2,1), (4,3)
    radius: float = 150e-6  # m
    shell_mass: float = 9.0e-8  # kg, the part of the shell that stagnates with the hot spot
    gas_mass: float = 4.0e-9  # kg, of the hot spot


@dataclass(frozen=True, slots=True)
class HotSpot:
    """What follows from a state; all arrays of n."""

    volume: Array
    radius: Array  # of the sphere of equal volume
    pressure: Array
    temperature: Array  # at the centre, keV
    neutron_rate: Array
    burn_temperature: Array  # keV, averaged over the volume with the reaction rate
    xray_power: Array


@dataclass(frozen=True, slots=True)
class Trace:
    """Histories of n samples on their own time points: arrays of (steps, n), frozen after their end."""

    time: Array
    radius: Array
    pressure: Array
    temperature: Array
    neutron_rate: Array
    xray_power: Array
    shape: Array  # (steps, 3, n) relative amplitudes of the hot-spot boundary
    energy: Array  # the quantity that the equations conserve, J
    final: Array  # (NUM_ROWS, n)


def start(design: Design) -> Array:
    """The state at t = 0: the shell moves inwards with self-similar shape errors."""
    y = np.zeros((NUM_ROWS, np.size(design.velocity)))
    y[R] = design.radius
    y[V] = -design.velocity
    q = START_SHARE * np.repeat(np.atleast_2d(design.modes), 2, axis=0)
    y[Q] = q * y[R]
    y[W] = q * y[V]
    y[E] = 1.5 * design.pressure * volume(y)
    y[M] = design.gas_mass
    return y


def volume(y: Array) -> Array:
    """Of the hot spot, to second order in the shape."""
    return pi * y[R] * (4.0 / 3.0 * y[R] ** 2 + 2.0 * np.sum(GROWTH * INERTIA * y[Q] ** 2, axis=0))


def hot_spot(y: Array) -> HotSpot:
    """Pressure, temperature and emission of the isobaric hot spot."""
    space = volume(y)
    pressure = y[E] / (1.5 * space)
    temperature = (
        plasma.MEAN_INVERSE_TEMPERATURE * plasma.ION_MASS * pressure * space / (2.0 * y[M] * plasma.KEV)
    )
    density = pressure / (2.0 * plasma.KEV * temperature)
    burn, burn_share, xray = plasma.profile_tables()(temperature)
    unburnt = np.maximum(1.0 - 2.0 * plasma.ION_MASS * y[N] / y[M], 0.0)
    return HotSpot(
        volume=space,
        radius=np.cbrt(space * (3.0 / (4.0 * pi))),
        pressure=pressure,
        temperature=temperature,
        neutron_rate=0.25 * density**2 * unburnt**2 * burn * space,
        burn_temperature=burn_share * temperature,
        xray_power=plasma.bremsstrahlung(density, temperature) * xray * space,
    )


def rates(y: Array, shell_mass: float, spot: HotSpot) -> Array:
    """dy/dt."""
    dy = np.empty_like(y)
    push = 4.0 * pi * spot.pressure / shell_mass
    quadratic = np.sum(GROWTH * INERTIA * y[Q] ** 2, axis=0)
    dy[R] = y[V]
    dy[V] = push * (y[R] ** 2 + 0.5 * quadratic)
    dy[Q] = y[W]
    dy[W] = GROWTH * (push * y[R]) * y[Q]

    growth_of_volume = 4.0 * pi * y[R] ** 2 * y[V] + 2.0 * pi * quadratic * y[V]
    growth_of_volume += 4.0 * pi * y[R] * np.sum(GROWTH * INERTIA * y[Q] * y[W], axis=0)
    density = spot.pressure / (2.0 * plasma.KEV * spot.temperature)
    areal_density = plasma.ION_MASS * density * spot.radius * plasma.CHORD_INVERSE_TEMPERATURE
    deposited = plasma.deposited_fraction(areal_density, spot.temperature)
    dy[A] = plasma.ALPHA_ENERGY * deposited * spot.neutron_rate
    dy[X] = spot.xray_power
    dy[E] = dy[A] - dy[X] - spot.pressure * growth_of_volume
    dy[M] = plasma.ablation_rate(spot.radius, density, spot.temperature)
    dy[N] = spot.neutron_rate
    dy[NT] = spot.neutron_rate * spot.burn_temperature
    dy[NP] = spot.neutron_rate * spot.pressure
    return dy


def conserved_energy(y: Array, shell_mass: float) -> Array:
    """Kinetic + internal + radiated - deposited energy, in J: constant in time."""
    kinetic = 0.5 * shell_mass * (y[V] ** 2 + np.sum(INERTIA * y[W] ** 2, axis=0))
    return kinetic + y[E] + y[X] - y[A]


def time_step(y: Array, dy: Array, resolution: float) -> Array:
    """A fixed share of the fastest of: convergence, deceleration, heating and cooling, evaporation."""
    fastest = (y[V] / y[R]) ** 2 + np.abs(dy[V]) / y[R]
    fastest += ((dy[A] + dy[X]) / y[E]) ** 2 + (dy[M] / y[M]) ** 2
    return resolution / np.sqrt(fastest)


def implode(design: Design, *, resolution: float = 0.04) -> Trace:
    """Integrate from the start of deceleration until the burn is over, by the classical Runge-Kutta method.

    A sample is over once it has expanded to twice its least radius and emits a thousandth of its peak.
    """
    y = start(design)
    mass = design.shell_mass
    clock = np.zeros(y.shape[1])
    least, peak = np.full_like(clock, np.inf), np.zeros((2, y.shape[1]))
    history = []
    for _ in range(MAX_STEPS):
        spot = hot_spot(y)
        emission = np.stack([spot.neutron_rate, spot.xray_power])
        least, peak = np.minimum(least, spot.radius), np.maximum(peak, emission)
        over = (spot.radius > 2.0 * least) & np.all(emission < 1e-3 * peak, axis=0) | (clock > MAX_TIME)
        over |= ~np.isfinite(y[E])
        history.append((clock, spot, _shape(y), conserved_energy(y, mass)))
        if over.all():
            break
        k1 = rates(y, mass, spot)
        h = np.where(over, 0.0, time_step(y, k1, resolution))
        k2 = _rates_at(y + 0.5 * h * k1, mass)
        k3 = _rates_at(y + 0.5 * h * k2, mass)
        k4 = _rates_at(y + h * k3, mass)
        y = np.where(over, y, y + h / 6.0 * (k1 + 2.0 * (k2 + k3) + k4))
        clock = clock + h
    return _trace(history, y)


def _rates_at(y: Array, shell_mass: float) -> Array:
    return rates(y, shell_mass, hot_spot(y))


def _shape(y: Array) -> Array:
    """(3, n): radial displacement of the boundary in each harmonic, relative to the radius."""
    q = y[Q]
    return (q[0::2] + q[1::2]) / y[R]


def _trace(history: list[tuple[Array, HotSpot, Array, Array]], final: Array) -> Trace:
    clocks, spots, shapes, energies = zip(*history, strict=True)
    return Trace(
        time=np.stack(clocks),
        radius=np.stack([spot.radius for spot in spots]),
        pressure=np.stack([spot.pressure for spot in spots]),
        temperature=np.stack([spot.temperature for spot in spots]),
        neutron_rate=np.stack([spot.neutron_rate for spot in spots]),
        xray_power=np.stack([spot.xray_power for spot in spots]),
        shape=np.stack(shapes),
        energy=np.stack(energies),
        final=final,
    )
