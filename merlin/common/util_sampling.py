"""`scale_samples`, which the sampling scripts of upstream's examples import."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def scale_samples(
    samples_norm: ArrayLike,
    limits: Sequence[tuple[float, float]],
    limits_norm: tuple[float, float] = (0, 1),
    do_log: bool | Sequence[bool] = False,
) -> NDArray[np.float64]:
    """Map samples of shape (n, d) from `limits_norm` to `limits`, one (low, high) per column.

    Columns with `do_log` true are spread evenly in log10 between their limits. Raises ValueError unless samples are
    two-dimensional with one column per limit.
    """
    x_ND = np.asarray(samples_norm, dtype=np.float64)
    if x_ND.ndim != 2 or x_ND.shape[1] != len(limits):
        raise ValueError(f"need samples of shape (n, {len(limits)}), found {x_ND.shape}")
    is_log_D = np.broadcast_to(np.asarray(do_log, dtype=bool), (x_ND.shape[1],))
    out_ND = np.empty_like(x_ND)
    unit_ND = (x_ND - limits_norm[0]) / (limits_norm[1] - limits_norm[0])
    for d, ((low, high), is_log) in enumerate(zip(limits, is_log_D, strict=True)):
        if is_log:
            low_exp, high_exp = np.log10(low), np.log10(high)
            out_ND[:, d] = 10.0 ** (low_exp + unit_ND[:, d] * (high_exp - low_exp))
        else:
            out_ND[:, d] = low + unit_ND[:, d] * (high - low)
    return out_ND
