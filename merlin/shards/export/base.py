"""What every format has in common: options, the contract of an exporter, records of finished files."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct, field

from merlin.base.files import remove_leftovers, replacing
from merlin.errors import ShardError, UsageError
from merlin.shards.export.view import ExportColumn, View

Progress = Callable[[int, int], None]  # samples done, samples in all


class ExportOptions(Struct, frozen=True, kw_only=True):
    """The options of an export; equal ones of one data set make equal files."""

    format: str
    fields: tuple[str, ...] | None = None  # all
    split: str | None = None  # all samples
    samples_per_file: int = 0  # 0: the format's default
    compression: str = ""  # "": the format's default
    trainers: int = 0  # lists of samples for this many trainers (lbann)


class ExportedFile(Struct, frozen=True):
    """A finished file of an export: positions [lo, hi) of the exported samples."""

    file: str  # relative to the export's directory
    lo: int
    hi: int
    size_bytes: int
    digest: str  # SHA-256 of the file
    facts: dict[str, Any] = field(default_factory=dict)  # what the format's index needs to know about it

    @property
    def num_samples(self) -> int:
        return self.hi - self.lo


class Exporter(ABC):
    """Writes a view in one format, file by file; files do not depend on each other.

    `write` gets a temporary path and must leave a complete file there. When every file is done, `finish` writes
    what describes them together.
    """

    format: ClassVar[str]
    samples_per_file: ClassVar[int]  # default
    compressions: ClassVar[tuple[str, ...]]  # the first is the default

    def __init__(self, view: View, options: ExportOptions) -> None:
        self.view = view
        self.options = options
        self.compression = options.compression or self.compressions[0]
        self.step = options.samples_per_file or self.samples_per_file

    def refusal(self, column: ExportColumn) -> str:
        """Why the format cannot hold the column; empty if it can."""
        return ""

    @abstractmethod
    def file_name(self, number: int) -> str:
        """The name of file `number`, relative to the export's directory."""

    @abstractmethod
    def write(self, path: Path, lo: int, hi: int) -> dict[str, Any]:
        """Write positions [lo, hi) and return what `finish` needs to know about the file."""

    @abstractmethod
    def count(self, path: Path) -> int:
        """How many samples the file at `path` holds; reads the file."""

    def write_part(self, directory: Path, number: int) -> ExportedFile:
        """Write file `number` under a temporary name, count what it holds, and rename it.

        Raises ShardError if it does not hold what it should.
        """
        lo, hi = self.range_of(number)
        name = self.file_name(number)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(path.parent, path.name)
        with replacing(path) as temporary:
            facts = self.write(temporary, lo, hi)
            require_count(path, hi - lo, self.count(temporary))
            size, digest = temporary.stat().st_size, file_digest(temporary)
        return ExportedFile(name, lo, hi, size, digest, facts)

    def is_present(self, directory: Path, part: ExportedFile) -> bool:
        """True if a finished file is still there, with the size that it had."""
        path = directory / part.file
        return path.is_file() and path.stat().st_size == part.size_bytes

    def prepare(self, directory: Path) -> None:
        """Called before any file is written to the directory, and again when a killed export goes on."""
        return

    def finish(self, directory: Path, parts: list[ExportedFile]) -> list[str]:
        """Write what describes the files together; returns the names of these further files."""
        return []

    @property
    def num_files(self) -> int:
        return -(-self.view.num // self.step)

    def range_of(self, number: int) -> tuple[int, int]:
        """The positions of file `number`."""
        return number * self.step, min((number + 1) * self.step, self.view.num)

    def check(self) -> None:
        """Raise UsageError for columns or options that the format does not have."""
        if self.compression not in self.compressions:
            known = ", ".join(self.compressions)
            raise UsageError(f"--compression {self.compression} is not one of {self.format}'s: {known}")
        if self.options.trainers and self.format != "lbann":
            raise UsageError("--trainers makes LBANN's sample lists; it goes with --to lbann")
        refused = {column.key: why for column in self.view.columns if (why := self.refusal(column))}
        if refused:
            raise UsageError(self._explain(refused))

    def _explain(self, refused: dict[str, str]) -> str:
        lines = [f"{self.format} cannot hold {len(refused)} of the data set's columns:"]
        lines += [f"  {name}: {why}" for name, why in refused.items()]
        rest = [c.key for c in self.view.columns if c.group == "fields" and c.key not in refused]
        if rest and all(self.view.column(name).group == "fields" for name in refused):
            lines.append(f"Leave them out with --fields {','.join(rest)}")
        return "\n".join(lines)


def require_count(path: Path, expected: int, found: int) -> None:
    """Raise ShardError unless a file that was just written holds as many samples as were given to it."""
    if found != expected:
        raise ShardError(f"{path}: expected {expected} samples in the file just written, found {found}")


def file_digest(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
