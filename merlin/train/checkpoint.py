"""Checkpoints: complete states of a trainer under names that are there only when they are complete.

step_<number>/     the newest ones, as `sharded_state` writes them
last, best         symbolic links to the newest one and to the best one, which is kept

Earlier versions wrote files of torch.save, step_<number>.pt, last.pt and best.pt; a run goes on from these, too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from merlin.base.files import TEMPORARY_SUFFIX, replace_link, sync_path
from merlin.errors import CheckpointError
from merlin.train.parallel.mesh import Ranks
from merlin.train.sharded_state import on_all_ranks, read_sharded, write_sharded
from merlin.train.state_file import State, read_state, require_format

FORMAT = "merlin-checkpoint"
VERSION = 2
LAST, BEST = "last", "best"
_FILE = ".pt"  # of version 1
_NAME = re.compile(r"step_(\d+)(\.pt)?")


class Checkpoints:
    """The checkpoints of one trainer in one directory, which all its ranks see.

    `note` is called with a text about each checkpoint that cannot be used.
    """

    def __init__(
        self,
        directory: Path,
        keep: int,
        note: Callable[[str], None] = lambda text: None,
        ranks: Ranks = Ranks(),  # noqa: B008  frozen
    ) -> None:
        self.directory = directory
        self._keep = keep
        self.note = note
        self._ranks = ranks

    def save(self, state: State, step: int, *, best: bool = False) -> bool:
        """Write the state after `step` steps; all ranks have to call it.

        Returns False, on all ranks, if it failed: then what was there stays, and a note says so.
        """
        path = self.directory / f"step_{step:08d}"
        temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
        head = {"format": FORMAT, "version": VERSION, "step": step}
        try:
            on_all_ranks(self._ranks, lambda: self._clear(temporary))
            write_sharded(temporary, head, state, self._ranks)
            on_all_ranks(self._ranks, lambda: self._publish(temporary, path, best))
        except CheckpointError as error:
            if self._ranks.is_first:
                kept = [s for s in self.steps() if s != step]
                rest = f"the one of step {kept[-1]} stays" if kept else "there is none yet"
                self.note(f"the checkpoint of step {step} could not be written: {error}; {rest}")
                shutil.rmtree(temporary, ignore_errors=True)
            return False
        return True

    def _clear(self, temporary: Path) -> None:
        """Make an empty directory, after the removal of what killed writers left."""
        if self._ranks.is_first:
            for leftover in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
                _remove(leftover)
            temporary.mkdir(parents=True)

    def _publish(self, temporary: Path, path: Path, best: bool) -> None:
        """Give a complete checkpoint its name, and remove those that are not needed any more."""
        if not self._ranks.is_first:
            return
        if path.exists():  # of a run that went back
            path.rename(path.with_name(f"{path.name}.old{TEMPORARY_SUFFIX}"))
        temporary.rename(path)
        sync_path(self.directory)
        replace_link(self.directory / LAST, path.name)
        step = _step_of(path)
        if best:
            self.mark_best(step)
        (self.directory / (LAST + _FILE)).unlink(missing_ok=True)
        self._forget_old(step)

    def mark_best(self, step: int) -> None:
        """Let the checkpoint of a step, if there is one, be the best; only the first rank calls it."""
        path = self._path(step)
        if path is not None and path.is_dir():
            replace_link(self.directory / BEST, path.name)
            (self.directory / (BEST + _FILE)).unlink(missing_ok=True)

    def steps(self) -> list[int]:
        """The steps of which there are checkpoints, ascending."""
        return sorted(set(map(_step_of, self._named())))

    def _named(self) -> Iterator[Path]:
        return (path for path in self.directory.glob("step_*") if _NAME.fullmatch(path.name))

    def _path(self, step: int) -> Path | None:
        """The checkpoint of a step, of this version rather than of an earlier one."""
        return min((path for path in self._named() if _step_of(path) == step), default=None)

    def load(self, step: int, like: State | None = None) -> State:
        """The checkpoint of a step. Raises CheckpointError if it is damaged or not there; `like` as `read_sharded`."""
        path = self._path(step)
        if path is None:
            raise CheckpointError(f"there is no checkpoint of step {step} in {self.directory}")
        return read_checkpoint(path, like)

    def newest(self, like: State | None = None) -> State | None:
        """The newest checkpoint that can be read; None if there is none at all.

        Raises CheckpointError if there are some and none can be read.
        """
        steps = self.steps()
        for number, step in enumerate(reversed(steps)):
            try:
                state = self.load(step, like)
            except CheckpointError as error:
                self.note(str(error))
                continue
            if number:
                self.note(f"using the checkpoint before it, of step {step}: {self._path(step)}")
            return state
        if steps:
            raise CheckpointError(
                f"none of the {len(steps)} checkpoints in {self.directory} can be read; "
                "remove them to begin anew"
            )
        return None

    def _forget_old(self, newest: int) -> None:
        """Remove all but the last `keep`, those after `newest`, and the best."""
        steps = self.steps()
        wanted = [step for step in steps if step <= newest][-self._keep :]
        best = (self.directory / BEST).resolve()
        for path in list(self._named()):
            if _step_of(path) not in wanted and path.resolve() != best:
                _remove(path)


def best_checkpoint(directory: Path) -> Path | None:
    """The best checkpoint of a trainer; None if it has none."""
    return next((p for p in (directory / BEST, directory / (BEST + _FILE)) if p.exists()), None)


def read_checkpoint(path: Path, like: State | None = None) -> State:
    """Read and check a checkpoint; `like` as `read_sharded`. Raises CheckpointError if it is damaged or not there.

    A trainer that still trains may replace it meanwhile, or let a link lead elsewhere: then the new one is read.
    """
    if path.suffix == _FILE:
        state = read_state(path)
        require_format(path, state, FORMAT, 1)
        return state
    while True:
        place, identity = path.resolve(), _identity(path)
        try:
            return read_sharded(place, FORMAT, VERSION, like)
        except CheckpointError:
            if _identity(path) == identity:
                raise


def _identity(path: Path) -> tuple[str, int, int] | None:
    """What changes when another directory gets this name; None if there is none."""
    try:
        status = path.stat()
        return str(path.resolve()), status.st_ino, status.st_ctime_ns
    except OSError:
        return None


def _step_of(path: Path) -> int:
    match = _NAME.fullmatch(path.name)
    assert match is not None
    return int(match[1])


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
