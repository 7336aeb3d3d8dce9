"""The function step of icf.yaml: five inputs to 15 scalars, a burn history and three four-channel images.

A semi-analytic implosion from published equations; README.md derives and cites them. It stands in for the JAG
model and is not JAG.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import icf_diagnostics as diagnostics
import icf_images as images
import icf_implosion as implosion
import numpy as np
from icf_plasma import Array

BLOCK = 256  # samples advanced together; bounds the memory of a chunk

# The centre and the reach of the design space, README section 2.
VELOCITY = 365e3  # m/s
VELOCITY_REACH = 0.11
ADIABAT = 3.0
ADIABAT_REACH = 0.20
SHELL_DENSITY = 8.0  # g/cm^3 at the start of deceleration


def design(inputs: Mapping[str, Array]) -> implosion.Design:
    """The implosion that five inputs stand for."""
    along = (2.0 * np.asarray(inputs["trans_u"], dtype=float) - 1.0) / np.sqrt(2.0)
    across = (2.0 * np.asarray(inputs["trans_v"], dtype=float) - 1.0) / np.sqrt(2.0)
    adiabat = ADIABAT * np.exp(ADIABAT_REACH * (along - across))
    return implosion.Design(
        velocity=VELOCITY * np.exp(VELOCITY_REACH * (along + across)),
        pressure=adiabat * 2.18e11 * SHELL_DENSITY ** (5.0 / 3.0),
        modes=np.stack(
            [np.asarray(inputs[label], dtype=float) for label in ("mode_1_0", "mode_2_1", "mode_4_3")]
        ),
    )


def simulate(inputs: Mapping[str, Array], context: Any) -> dict[str, Array]:
    """Run the implosions of a chunk; every result has the samples as its first axis."""
    num = len(inputs["trans_u"])
    results: dict[str, Array] = {}
    for lo in range(0, num, BLOCK):
        rows = slice(lo, lo + BLOCK)
        for name, part in _simulate_block({label: values[rows] for label, values in inputs.items()}).items():
            if name not in results:
                results[name] = np.empty((num, *part.shape[1:]), part.dtype)
            results[name][rows] = part
    return results


def _simulate_block(inputs: Mapping[str, Array]) -> dict[str, Array]:
    trace = implosion.implode(design(inputs))
    results, xray_peak = diagnostics.scalars(trace)
    results["burn_history"] = diagnostics.burn_history(trace, results["BT"] * diagnostics.NANO)
    for (theta, phi), pixels in images.render(diagnostics.snapshot(trace, xray_peak)).items():
        results[f"image_{theta:.0f}_{phi:.0f}"] = pixels
    return results
