"""Bring a copy of a data set into the state of the data set in its workspace, file by file."""

from __future__ import annotations

import filecmp
import shutil
from pathlib import Path

from merlin.base.files import replacing
from merlin.shards.format.manifest_file import NAME, VIRTUAL_NAME, read_manifest
from merlin.shards.format.shard_info import info_name


def lend(copy: Path, place: Path) -> None:
    """Fill the data set's place in its workspace, where its manifest is gone, with what the copy has."""
    for path in [*sorted(copy.glob("shard_*")), copy / VIRTUAL_NAME, copy / NAME]:
        if path.is_file() and not (place / path.name).exists():
            _copy(path, place / path.name)


def take_over(place: Path, copy: Path) -> list[str]:
    """Replace what differs in the copy, the manifest last; returns the names of these files."""
    data = read_manifest(place)
    names = [name for entry in data.shards for name in (entry.file, info_name(entry.shard))]
    taken = []
    for name in dict.fromkeys([*names, data.virtual.file, VIRTUAL_NAME, NAME]):
        if not (copy / name).is_file() or not filecmp.cmp(place / name, copy / name, shallow=False):
            _copy(place / name, copy / name)
            taken.append(name)
    return taken


def _copy(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)
