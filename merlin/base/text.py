"""Numbers as people read them: counts, sizes, durations, rates; and the texts of others, fit for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice

_CORE_UNITS = (("core-hours", 1, 1.0), ("core-minutes", 60, 1 / 60), ("core-seconds", 3600, 0.0))
_CONTROLS = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]",
    re.DOTALL,
)
_SAFE_CHARACTERS = frozenset("-_.() abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789")


def count(num: int, noun: str, plural: str = "") -> str:
    """ "1 task", "1,200 tasks"."""
    return f"{num:,} {noun if num == 1 else plural or noun + 's'}"


def some_of(items: Iterable[object], limit: int = 8, more: str = ", …") -> str:
    """The first few of a list, and `more` if there are others: "a, b, …"."""
    texts = [str(item) for item in islice(items, limit + 1)]
    return ", ".join(texts[:limit]) + (more if len(texts) > limit else "")


def cut(text: str, most: int) -> str:
    """The text, shortened to `most` characters."""
    return text if len(text) <= most else f"{text[: max(1, most - 1)]}…"


def size(num_bytes: float) -> str:
    """ "512 B", "3.4 MB", in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if num_bytes < 1000 or unit == "TB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    raise AssertionError("unreachable")


def duration(seconds: float | None) -> str:
    """ "0.4 s", "12 s", "3 min 05 s", "2 h 10 min"; "" for an unknown one."""
    if seconds is None or seconds != seconds or seconds == float("inf"):
        return ""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def percent(part: float, whole: float) -> str:
    """ "12.5", "0.07"; "100" and "0" only if the share is exactly that."""
    if not part or not whole:
        return "0"
    return "100" if part == whole else f"{min(99.9, max(0.001, 100 * part / whole)):.3g}"


def rate(per_second: float | None) -> str:
    """ "1,234/s", "0.52/s", "3.1/min"; "" for none."""
    if not per_second or per_second != per_second:
        return ""
    if per_second >= 10:
        return f"{per_second:,.0f}/s"
    if per_second >= 0.5:
        return f"{per_second:.1f}/s"
    return f"{per_second * 60:.1f}/min"


def printable(text: str) -> str:
    """The text without what a terminal would act on; tabs become blanks."""
    return _CONTROLS.sub("", text.replace("\r\n", "\n").replace("\r", "\n").expandtabs())


def short_name(worker: str) -> str:
    """The name of a worker as people write it, without Celery's prefix."""
    return worker.removeprefix("celery@")


def path_safe(text: str) -> str:
    """The text as a directory name: letters, digits and ``-_.()`` stay, blanks become ``_``."""
    return "".join(c for c in text if c in _SAFE_CHARACTERS).replace(" ", "_")


def core_time(hours: float) -> str:
    """ "36 core-seconds", "1,200 core-hours", with as many digits as matter."""
    unit, value = in_core_units(hours, hours)
    return f"{value} {unit}"


def in_core_units(hours: float, most_h: float) -> tuple[str, str]:
    """The unit that suits the largest of several costs, and `hours` in this unit."""
    unit, per_hour = next(
        (unit, factor) for unit, factor, from_h in _CORE_UNITS if most_h >= from_h or unit == "core-seconds"
    )
    value = hours * per_hour
    if not value:
        return unit, "0"
    return unit, f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.001 else "< 0.001"
