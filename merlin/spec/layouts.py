"""Which axis of an image or a volume is which: letters h w d c, in the order of the axes."""

from __future__ import annotations

from collections.abc import Sequence

SPATIAL = {"image": "hw", "volume": "dhw"}
NAMES = {"h": "y", "w": "x", "d": "z", "c": "channel"}  # what axes are called if nothing else is said
_LETTERS = {
    "y": "h",
    "height": "h",
    "x": "w",
    "width": "w",
    "z": "d",
    "depth": "d",
    "channel": "c",
    "channels": "c",
}


def layout_of(kind: str, num_axes: int, axes: Sequence[str] = ()) -> str:
    """The layout that the names of the axes suggest, else channels last; "" for what is no image or volume."""
    spatial = SPATIAL.get(kind, "")
    if not spatial or num_axes not in (len(spatial), len(spatial) + 1):
        return ""
    wanted = spatial + "c" * (num_axes - len(spatial))
    named = "".join(_LETTERS.get(name.lower(), "?") for name in axes)
    if sorted(named) == sorted(wanted):
        return named
    if len(wanted) > len(spatial) and named.count("c") == 1 and len(named) == num_axes:
        at = named.index("c")
        return spatial[:at] + "c" + spatial[at:]
    return wanted


def axes_of(layout: str, *, ragged: bool = False) -> tuple[str, ...]:
    """Names of the axes that a layout says; none for none."""
    if not layout:
        return ()
    return (*(["item"] if ragged else []), *(NAMES[letter] for letter in layout))
