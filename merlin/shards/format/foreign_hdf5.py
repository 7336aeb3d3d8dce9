"""HDF5 files that somebody else has made: no other file is opened, whatever their links and data sets say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401 - registers decompressors

from merlin.base.stored import DEFLATE, MOST, require_stored

_MAX_LINKS = 32  # soft links in one path; more are taken for a circle
_MAX_DEPTH = 8  # levels of virtual data sets that are made of virtual data sets
_UNPACKED = 100  # for data that is not compressed: parts of it may never have been written
_CHECKS = {2, 3}  # shuffle and Fletcher-32, which compress nothing
_GZIP = 1


class ForeignFile:
    """A file that is open for reading.

    Methods raise OSError, and ValueError for what leads out of the file or is impossible.
    """

    def __init__(self, path: str | Path) -> None:
        self._file = h5py.File(path, "r", locking=False)

    @property
    def attrs(self) -> Any:
        return self._file.attrs

    def names(self, path: str = "") -> list[str]:
        """The names in a group, including those of links to other files."""
        return list(self.find(path)) if self.is_group(path) else []

    def datasets(self, path: str = "") -> list[str]:
        """The paths of all data sets in a group and the groups in it; those behind soft links are left out."""
        found: list[str] = []
        group = self.find(path)
        if isinstance(group, h5py.Group):
            group.visititems(
                lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None
            )
        return found

    def dataset(self, path: str) -> h5py.Dataset | None:
        """Return the data set at a path; None if there is none."""
        found = self.find(path)
        return found if isinstance(found, h5py.Dataset) else None

    def is_group(self, path: str) -> bool:
        return isinstance(self.find(path), h5py.Group)

    def is_outside(self, path: str) -> bool:
        """Return whether this is a link to another file, which is not followed."""
        try:
            self.find(path)
        except ValueError:
            return True
        return False

    def find(self, path: str) -> Any:
        """The group or data set at a path, None if there is none."""
        return self._find(path, 0)

    def _find(self, path: str, depth: int) -> Any:
        node, todo, num_links = self._file["/"], _steps(path), 0
        while todo:
            name = todo.pop()
            if not isinstance(node, h5py.Group):
                return None
            raw, links = name.encode("utf-8", "surrogateescape"), node.id.links
            if not links.exists(raw):
                return None
            match links.get_info(raw).type:
                case h5py.h5l.TYPE_HARD:
                    node = node[raw]
                case h5py.h5l.TYPE_SOFT:
                    num_links += 1
                    if num_links > _MAX_LINKS:
                        raise ValueError(f"'{path}' is a soft link that leads in a circle")
                    target = links.get_val(raw).decode("utf-8", "surrogateescape")
                    node = self._file["/"] if target.startswith("/") else node
                    todo += _steps(target)
                case _:
                    raise ValueError(f"'{path}' is a link to another file, which is not followed")
        if isinstance(node, h5py.Dataset):
            self._require_own(path, node, depth)
        return node

    def _require_own(self, path: str, dataset: h5py.Dataset, depth: int) -> None:
        """Raise ValueError if values are in other files, or are more than the file can hold."""
        made = dataset.id.get_create_plist()
        if made.get_external_count():
            raise ValueError(
                f"the values of '{path}' are in another file (external storage), which is not read"
            )
        if made.get_layout() == h5py.h5d.VIRTUAL:
            stored = self._virtual_bytes(path, made, depth)
        else:
            stored = int(dataset.id.get_storage_size())
        shape = dataset.shape
        if shape:
            try:
                require_stored(shape, dataset.id.get_type().get_size(), stored, _ratio(made))
            except ValueError as error:
                raise ValueError(f"'{path}': {error}") from None

    def _virtual_bytes(self, path: str, made: Any, depth: int) -> int:
        """The size of the data sets of this file that a virtual one is made of."""
        sources = {
            (made.get_virtual_filename(i), made.get_virtual_dsetname(i))
            for i in range(made.get_virtual_count())
        }
        total = 0
        for file, name in sorted(sources):
            if file != "." or "%" in name:  # "%b" would stand for many names
                raise ValueError(
                    f"'{path}' is a virtual data set of other files ({file}), which are not read; import those files"
                )
            if depth >= _MAX_DEPTH:
                raise ValueError(f"'{path}' is a virtual data set of itself, or of too many others")
            source = self._find(name, depth + 1)
            total += int(getattr(source, "nbytes", 0))
        return total

    def close(self) -> None:
        self._file.close()


def _steps(path: str) -> list[str]:
    """The names in a path, the first one last."""
    return [name for name in reversed(path.split("/")) if name not in ("", ".")]


def _ratio(made: Any) -> int:
    """The most bytes that one stored byte can become, given the filters of a data set."""
    codes = [made.get_filter(i)[0] for i in range(made.get_nfilters())]
    codecs = [code for code in codes if code not in _CHECKS]
    return _UNPACKED if not codecs else DEFLATE if codecs == [_GZIP] else MOST
