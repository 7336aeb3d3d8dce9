"""X-ray images of the hot spot: line-of-sight integrals of free-free emission through a low-mode shape."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import cos, pi, radians, sin, sqrt

import icf_plasma as plasma
import numpy as np
from icf_plasma import Array

LINES_OF_SIGHT = ((0.0, 0.0), (90.0, 0.0), (90.0, 78.0))  # (theta, phi) of the detector, degrees
PIXELS = 64
PIXEL_SIZE = 2.8e-6  # m, in the plane of the hot spot; the depth is sampled as finely
TABLE_SIZE = 2048


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The hot spot at one time: arrays of n samples."""

    radius: Array  # m, of the sphere of equal volume
    pressure: Array  # Pa
    temperature: Array  # keV, at the centre
    modes: Array  # (3, n) relative amplitudes of the harmonics (1,0), (2,1), (4,3)


def harmonics(x: Array, y: Array, z: Array) -> Array:
    """Real spherical harmonics (1,0), (2,1), (4,3) of a direction; their mean square over the sphere is 1."""
    return np.stack([sqrt(3.0) * z, sqrt(15.0) * x * z, 0.75 * sqrt(70.0) * x * z * (x * x - 3.0 * y * y)])


@dataclass(frozen=True, slots=True)
class _Rays:
    """The middle of a line of sight's cubic grid, contiguous, in pixels; axes (depth, image row, image column).

    Where the columns right of the centre see what those left of it see, only the left ones are here.
    """

    square_radius: Array  # (2 reach, 2 reach, 2 reach or reach) float32
    harmonics: Array  # (3, 2 reach, 2 reach, 2 reach or reach) float32
    mirrored: bool


@cache
def _rays(line_of_sight: tuple[float, float], reach: int) -> _Rays:
    """Columns run along the unit vector of phi, rows along that of theta, depth to the detector."""
    theta, phi = radians(line_of_sight[0]), radians(line_of_sight[1])
    right = np.array([-sin(phi), cos(phi), 0.0])
    down = np.array([cos(theta) * cos(phi), cos(theta) * sin(phi), -sin(theta)])
    toward = np.array([sin(theta) * cos(phi), sin(theta) * sin(phi), cos(theta)])
    axis = np.arange(2 * reach) - 0.5 * (2 * reach - 1)
    depth, row, column = np.meshgrid(axis, axis, axis, indexing="ij")
    square = row**2 + column**2 + depth**2
    point = [row * down[k] + column * right[k] + depth * toward[k] for k in range(3)]
    basis = harmonics(*[component / np.sqrt(square) for component in point]).astype(np.float32)
    mirrored = bool((basis == basis[..., ::-1]).all())
    columns = slice(0, reach if mirrored else 2 * reach)
    return _Rays(
        np.ascontiguousarray(square[..., columns], np.float32),
        np.ascontiguousarray(basis[..., columns]),
        mirrored,
    )


@cache
def _sphere() -> tuple[Array, Array]:
    """(harmonics, weights) on a quadrature of the sphere; the weights sum to 1."""
    z, weight = np.polynomial.legendre.leggauss(24)
    phi = 2.0 * pi * np.arange(48) / 48
    across = np.sqrt(1.0 - z * z)[:, None]
    x, y = across * np.cos(phi), across * np.sin(phi)
    return harmonics(x, y, z[:, None] + 0.0 * x).reshape(3, -1), np.repeat(weight / 96.0, 48)


def surface(modes: Array) -> tuple[Array, Array]:
    """(scale, extent) of the boundary radius * scale * exp(sum of modes * harmonics): arrays of n.

    The scale keeps the volume; the extent is the greatest boundary radius, both in units of the mean radius.
    The exponential equals 1 + the sum to first order, and never changes sign.
    """
    basis, weights = _sphere()
    # no matrix products: their rounding depends on the number of samples, and so on how a study is cut into chunks
    stretch = np.exp(sum(mode[:, None] * harmonic for mode, harmonic in zip(modes, basis, strict=True)))
    scale = (stretch * stretch * stretch * weights).sum(axis=1) ** (-1.0 / 3.0)
    return scale, scale * stretch.max(axis=1)


def emission_table(pressure: float, temperature: float, blur: float) -> Array:
    """(TABLE_SIZE, 4) power per volume and solid angle, W/(m^3 sr), on equal steps of x^2 up to 1 + 2 blur.

    x is the distance from the centre relative to the boundary. Each row is the mean over a depth step
    around x (`blur`, in the same units), so that the sharp boundary does not print the grid onto the image.
    The last row is dark.
    """
    step = 1.0 / TABLE_SIZE
    x = (np.arange(TABLE_SIZE) + 0.5) * step
    local = temperature * (1.0 - x * x) ** plasma.PROFILE_POWER
    density = pressure / (2.0 * plasma.KEV * local)
    edges = np.array(plasma.XRAY_BANDS)
    share = np.exp(-edges[:, 0] / local[:, None]) - np.exp(-edges[:, 1] / local[:, None])
    emission = plasma.bremsstrahlung(density, local)[:, None] * share / (4.0 * pi)
    # The integral from 0 to x, on equal steps of x, whose differences are the means.
    below = np.vstack([np.zeros(len(edges)), np.cumsum(emission, axis=0) * step])
    rows = np.sqrt(np.linspace(0.0, 1.0 + 2.0 * blur, TABLE_SIZE))
    outer, inner = (_interpolate(below, np.abs(rows + side) / step) for side in (0.5 * blur, -0.5 * blur))
    table = (outer - np.where(rows < 0.5 * blur, -1.0, 1.0)[:, None] * inner) / blur
    table[-1] = 0.0
    return np.maximum(table, 0.0)  # differences of nearly equal numbers


def _interpolate(rows: Array, position: Array) -> Array:
    """Rows at fractional positions, constant beyond the last."""
    index = np.minimum(position.astype(np.intp), len(rows) - 2)
    weight = np.minimum(position - index, 1.0)[:, None]
    return rows[index] * (1.0 - weight) + rows[index + 1] * weight


def render(snapshot: Snapshot) -> dict[tuple[float, float], Array]:
    """Radiance of every line of sight: float32 arrays of (n, 64, 64, 4), in TW / (mm^2 sr).

    Optically thin: above 4 keV the hot spot is transparent, and absorption in the shell is left out.
    """
    n = len(snapshot.radius)
    scale, extent = surface(snapshot.modes)
    shape = (n, PIXELS, PIXELS, len(plasma.XRAY_BANDS))
    images = {los: np.zeros(shape, np.float32) for los in LINES_OF_SIGHT}
    for i in range(n):
        size = float(snapshot.radius[i] * scale[i] / PIXEL_SIZE)
        table = emission_table(snapshot.pressure[i], snapshot.temperature[i], 1.0 / size)
        table = (1e-18 * PIXEL_SIZE * table).astype(np.float32)  # W/m^2 to TW/mm^2, per depth step
        reach = int(min(PIXELS // 2, np.ceil(1.02 * extent[i] * snapshot.radius[i] / PIXEL_SIZE) + 1))
        inside = slice(PIXELS // 2 - reach, PIXELS // 2 + reach)
        for los, image in images.items():
            rays = _rays(los, reach)
            half = _project(rays, size, snapshot.modes[:, i], table)
            both = (half, half[:, ::-1]) if rays.mirrored else (half,)
            image[i, inside, inside] = np.concatenate(both, axis=1)
    return images


def _project(rays: _Rays, size: float, modes: Array, table: Array) -> Array:
    """Sum the emission along the depth: (rows, columns, 4)."""
    exponent = (-2.0 * modes).astype(np.float32)
    square = exponent[0] * rays.harmonics[0]
    square += exponent[1] * rays.harmonics[1]
    square += exponent[2] * rays.harmonics[2]
    np.exp(square, out=square)
    square *= rays.square_radius  # now x^2 * size^2
    square *= np.float32((TABLE_SIZE - 1) / ((1.0 + 2.0 / size) * size**2))
    np.minimum(square, np.float32(TABLE_SIZE - 1), out=square)
    square += np.float32(0.5)
    return table.take(square.astype(np.int32), axis=0).sum(axis=0)
