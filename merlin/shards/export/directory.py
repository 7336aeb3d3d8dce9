"""The records of an export: with them a killed one can go on, and a finished one describes itself.

While it runs, ``.export/request.json`` names what is written, and ``.export/files.jsonl`` gets a line for each
finished file. Then ``export.json`` takes their place; a directory without it holds no finished export.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from merlin.base.clock import utc_now
from merlin.base.files import TEMPORARY_SUFFIX, sync_path, write_text
from merlin.base.records import FileFormat, as_kind, indented, to_plain
from merlin.errors import ShardError, UsageError
from merlin.shards.export.base import ExportedFile
from merlin.shards.unfinished import UnfinishedDirectory, read_object

FORMAT = FileFormat("merlin-export", 1)
NAME = "export.json"


class ExportDirectory(UnfinishedDirectory[ExportedFile]):
    """The directory of an export. Equal requests make equal files."""

    def __init__(self, directory: Path, request: dict[str, Any]) -> None:
        super().__init__(directory, "export", "files.jsonl", ExportedFile)
        self._request = json.loads(json.dumps(request))

    def is_finished(self) -> bool:
        """True if there is a finished export, of whatever."""
        return (self.directory / NAME).is_file()

    def begin(self, is_present: Callable[[ExportedFile], bool]) -> tuple[list[ExportedFile], bool]:
        """The files that are done already, and whether nothing at all is left to do.

        Raises UsageError if the directory holds anything else.
        """
        description, request = read_export(self.directory), self.request()
        if description is not None:
            self._require_same(description["request"], "an export")
            listed = _files(description)
        elif request is not None:
            self._require_same(request["request"], "an unfinished export")
            listed = list({file.lo: file for file in self.finished()}.values())
        elif any(self.directory.iterdir()):
            raise UsageError(
                f"{self.directory} is not empty and holds no export; give a new directory with --out"
            )
        else:
            listed = []
        files = [file for file in listed if is_present(file)]
        others = [] if description is None else description["described_by"]
        is_complete = len(files) == len(listed) and all((self.directory / name).exists() for name in others)
        if description is not None and is_complete:
            self.remove_record()  # of a replacement that was not completed
            return files, True
        self.start({"request": self._request}, files)
        (self.directory / NAME).unlink(missing_ok=True)
        return files, False

    def _require_same(self, other: dict[str, Any], what: str) -> None:
        if other == self._request:
            return
        keys = sorted(key for key in {*other, *self._request} if other.get(key) != self._request.get(key))
        raise UsageError(
            f"{self.directory} holds {what} that differs from this one in {', '.join(map(_words, keys))}; "
            "give another --out, or replace it with --overwrite"
        )

    def end(
        self, files: list[ExportedFile], described_by: list[str], about: dict[str, Any]
    ) -> dict[str, Any]:
        """Write ``export.json`` and remove the record of the unfinished export."""
        body = {
            **FORMAT.head(),
            "request": self._request,
            "created": utc_now(),
            "num_samples": sum(file.num_samples for file in files),
            "size_bytes": sum(file.size_bytes for file in files),
            **about,
            "described_by": described_by,
            "files": to_plain(files),
        }
        text = indented(body)
        write_text(self.directory / NAME, text)
        self.remove_record()
        return dict(json.loads(text))

    @contextmanager
    def replacement(self) -> Iterator[ExportDirectory]:
        """Where the files are written that replace a finished export, which stays until they are complete.

        Afterwards this is an unfinished export that has all its files. If this process is killed, the next one that
        replaces the export goes on where it stopped.
        """
        self._names()
        request = json.dumps(self._request, sort_keys=True)
        with self._room(hashlib.sha256(request.encode()).hexdigest()[:16]) as room:
            with ExportDirectory(room, self._request) as made:
                yield made
            self._take_over(room, made)

    def _take_over(self, room: Path, made: ExportDirectory) -> None:
        """Move the files here. Whenever this ends, a record that is there lists no file of another export."""
        self._remove_files()
        self.start({"request": self._request}, made.finished())
        (self.directory / NAME).unlink()
        places = set()
        for path in [p for p in room.rglob("*") if p.is_file() and made.folder not in p.parents]:
            place = self.directory / path.relative_to(room)
            place.parent.mkdir(parents=True, exist_ok=True)
            path.replace(place)
            places.add(place.parent)
        for place in places:
            sync_path(place)
        shutil.rmtree(room)

    def remove_unfinished(self) -> None:
        """Remove the files of an unfinished export, if there is one; what comes now begins without any."""
        if self.folder.is_dir():
            self._remove_files()
            self.start({"request": self._request}, [])

    def _remove_files(self) -> None:
        """Remove the files of a finished or unfinished export, and nothing else."""
        names = self._names()
        leftovers = [
            path for path in self.directory.glob(f"**/*{TEMPORARY_SUFFIX}") if self.folder not in path.parents
        ]
        for path in [*(self.directory / name for name in names), *leftovers]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in sorted((p for p in self.directory.glob("**/") if p != self.directory), reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()

    def _names(self) -> list[str]:
        """The files of a finished or unfinished export. Raises ShardError if one would not be in the directory."""
        description = read_export(self.directory)
        names = [file.file for file in self.finished()]
        if description is not None:
            names += [*(file.file for file in _files(description)), *description["described_by"]]
        if outside := [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]:
            raise ShardError(f"{self.directory / NAME} lists {outside[0]}, which is not in the directory")
        return names


def read_export(directory: Path) -> dict[str, Any] | None:
    """The description of the finished export in `directory`, or None. Raises ShardError if it is unreadable."""
    path = directory / NAME
    if not path.is_file():
        return None
    found = read_object(path, "remove the export, or give another --out")
    if wrong := FORMAT.mismatch(found):
        raise ShardError(f"{path}: {wrong}")
    return found


def _files(description: dict[str, Any]) -> list[ExportedFile]:
    return [as_kind(entry, ExportedFile) for entry in description["files"]]


def _words(key: str) -> str:
    """A key of a request, as people say it."""
    return "the data set's content" if key == "content_digest" else key.replace("_", " ")
