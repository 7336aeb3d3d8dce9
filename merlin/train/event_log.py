"""What keeps the events of a loop on the disk: each an `EventLog` in its file, named in `LOGS` of `process.py`."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from merlin.train.events import Event


class EventLog(ABC):
    """A log of one trainer's events. A full disk costs it events and one note, and does not end the run."""

    name: ClassVar[str]  # of its file or folder in the directory of the trainer

    def __init__(self, directory: Path, step: int, note: Callable[[str], None]) -> None:
        """Opens the log after `step`; what was written after it is not there any more."""
        self._path = directory / self.name
        self._note = note
        self._has_failed = self._is_open = False
        with self._surviving():
            self._open(step)
            self._is_open = True

    def __call__(self, event: Event) -> None:
        if self._is_open:
            with self._surviving():
                self._write(event)

    def close(self) -> None:
        if self._is_open:
            with contextlib.suppress(OSError, ValueError):
                self._close()

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        """Note the first failure; a later event may find room again, if the log is open."""
        try:
            yield
        except (OSError, ValueError) as error:
            if not self._has_failed:
                self._note(f"{self._path} cannot be written: {getattr(error, 'strerror', None) or error}")
            self._has_failed = True

    @abstractmethod
    def _open(self, step: int) -> None:
        """Remove what was written after a step, and open the log. If this fails, it stays closed."""

    @abstractmethod
    def _write(self, event: Event) -> None: ...

    @abstractmethod
    def _close(self) -> None: ...
