"""How many cores of its host this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def usable_cores(of_job: int | None = None) -> int:
    """The cores of the affinity mask, or fewer where a cgroup's quota or the batch job allows fewer."""
    num = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_cores()
    return max(1, min(num, of_job or num, num if quota is None else round(quota)))


def cgroup_cores(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> float | None:
    """The processor time that the cgroup of this process gets, in cores; None without a limit."""
    quotas = [quota for folder in _folders(root, own) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _folders(root: Path, own: Path) -> list[Path]:
    """The cgroup of this process and those around it, of version 1 and 2."""
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    folders = [root]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = root / controllers if controllers else root
        if controllers and not base.is_dir():
            base = root / "cpu"
        inner = base / name.lstrip("/")
        folders += [folder for folder in (inner, *inner.parents) if folder.is_relative_to(root)]
    return list(dict.fromkeys(folders))


def _quota(folder: Path) -> float | None:
    with suppress(OSError, ValueError):
        limit, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        return int(limit) / int(period) if limit != "max" and int(period) > 0 else None
    with suppress(OSError, ValueError):
        limit_us = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period_us = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return limit_us / period_us if limit_us > 0 and period_us > 0 else None
    return None
