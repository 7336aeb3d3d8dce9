"""Where a data set is."""

from __future__ import annotations

from pathlib import Path

from merlin.errors import NotADataSetError
from merlin.shards.format.manifest_file import NAME, manifest_path

_NUM_LISTED = 8


def find_data_set(path: Path) -> Path:
    """The data set at `path`, or the only one in the workspace there; NotADataSetError if there is none, or several."""
    directory = manifest_path(path).parent
    if (directory / NAME).is_file():
        return directory
    if not path.exists():
        raise NotADataSetError(f"there is no {path}; name a data set, or a workspace with one")
    found = sorted(p.parent for depth in ("*", "*/*") for p in path.glob(f"{depth}/{NAME}"))
    if not found:
        raise NotADataSetError(f"there is no finished data set in {path} (no {NAME})")
    if len(found) > 1:
        listing = ", ".join(str(p) for p in found[:_NUM_LISTED])
        raise NotADataSetError(f"{path} holds {len(found)} data sets; name one of them: {listing}")
    return found[0]
