"""Checkpoints: complete states of a trainer under names that are there only when they are complete.

step_<number>.<k>/   the newest ones, as `sharded_state` writes them; of several of one step the highest k counts
best.<k>/            the best one, again: hard links to the files of its step; the highest k counts

Earlier versions wrote files of torch.save, step_<number>.pt, last.pt and best.pt; a run goes on from these, too.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

from merlin.base.files import TEMPORARY_SUFFIX, link_or_copy, making_directory, name_directory
from merlin.base.records import FileFormat
from merlin.errors import CheckpointError
from merlin.train.parallel.mesh import Ranks
from merlin.train.sharded_state import on_all_ranks, read_plain, read_sharded, write_sharded
from merlin.train.state_file import State, read_state, require_format

FORMAT = FileFormat("merlin-checkpoint", 2)
_FORMAT_1 = FileFormat(FORMAT.name, 1)
_FILE = ".pt"  # of version 1
_STEP = re.compile(r"step_(\d+)(?:\.(\d+)|\.pt)")
_BEST = re.compile(r"best\.(\d+)")
_OLD_NAMES = ("last.pt", "best.pt")


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
        self.held: int | None = None  # a step whose checkpoint stays until another one is named

    def save(self, state: State, step: int, *, best: bool = False) -> bool:
        """Write the state after `step` steps; all ranks have to call it.

        Returns False, on all ranks, if it failed: then what was there stays, and a note says so.
        """
        temporary = self.directory / f"step_{step:08d}{TEMPORARY_SUFFIX}"
        head = {**FORMAT.head(), "step": step}
        named: list[Path] = []
        try:
            on_all_ranks(self._ranks, lambda: self._clear(temporary))
            write_sharded(temporary, head, state, self._ranks)
            on_all_ranks(self._ranks, lambda: self._publish(temporary, step, best, named))
        except CheckpointError as error:
            if self._ranks.is_first:
                self.note(f"the checkpoint of step {step} {self._what_stays(step, str(error), bool(named))}")
                shutil.rmtree(temporary, ignore_errors=True)
            return False
        return True

    def _what_stays(self, step: int, why: str, is_named: bool) -> str:
        if is_named:
            return f"is there, and could not be kept as the best: {why}; the best one of before stays"
        kept = [s for s in self.steps() if s != step]
        rest = f"the one of step {kept[-1]} stays" if kept else "there is none yet"
        return f"could not be written: {why}; {rest}"

    def _clear(self, temporary: Path) -> None:
        """Remove what killed writers left, and make an empty directory."""
        if self._ranks.is_first:
            for leftover in self.directory.glob(f"*{TEMPORARY_SUFFIX}"):
                _remove(leftover)
            temporary.mkdir(parents=True)

    def _publish(self, temporary: Path, step: int, best: bool, named: list[Path]) -> None:
        """Give a complete checkpoint its name, and add it to `named`; remove those that are not needed any more."""
        if not self._ranks.is_first:
            return
        same = [number for at, number, _ in self._named() if at == step]
        path = self.directory / f"step_{step:08d}.{max(same, default=0) + 1}"
        name_directory(temporary, path, "names")
        named.append(path)
        if best:
            self._keep_best(path)
        self._forget_old(step, path)

    def mark_best(self, step: int) -> None:
        """Keep the checkpoint of a step, if there is one, as the best; only the first rank calls it."""
        path = self._path(step)
        if path is not None and path.is_dir():
            self._keep_best(path)

    def _keep_best(self, path: Path) -> None:
        before = _bests(self.directory)
        number = int(before[-1].name.rpartition(".")[2]) + 1 if before else 1
        with making_directory(self.directory / f"best.{number}", "names") as temporary:
            for file in path.iterdir():
                link_or_copy(file, temporary / file.name)
        for old in before:
            _remove(old)

    def steps(self) -> list[int]:
        """The steps of which there are checkpoints, ascending."""
        return sorted({step for step, _, _ in self._named()})

    def _named(self) -> list[tuple[int, int, Path]]:
        """(step, number, path) of every checkpoint of a step, ascending; files of version 1 have the number 0."""
        found = ((_STEP.fullmatch(path.name), path) for path in self.directory.glob("step_*"))
        return sorted((int(match[1]), int(match[2] or 0), path) for match, path in found if match)

    def _path(self, step: int) -> Path | None:
        """The checkpoint of a step: the one that was written last."""
        return next((path for at, _, path in reversed(self._named()) if at == step), None)

    def load(self, step: int, like: State | None = None) -> State:
        """The checkpoint of a step. Raises CheckpointError if it is damaged or not there; `like` as `read_sharded`."""
        path = self._path(step)
        if path is None:
            raise CheckpointError(f"there is no checkpoint of step {step} in {self.directory}")
        return read_checkpoint(path, like)

    def newest(self, like: State | None = None) -> State | None:
        """The newest checkpoint that can be read, else the best one; None if there is none at all.

        Raises CheckpointError if there are some and none can be read.
        """
        paths = [path for _, _, path in reversed(self._named())]
        old = [path for name in _OLD_NAMES if (path := self.directory / name).exists()]
        candidates = [*paths, *reversed(_bests(self.directory)), *old]
        for path in candidates:
            try:
                state = read_checkpoint(path, like)
            except CheckpointError as error:
                self.note(str(error))
                continue
            if path != candidates[0]:
                self.note(f"using the checkpoint before it, of step {state['step']}: {path}")
            return state
        if candidates:
            raise CheckpointError(
                f"none of the {len(candidates)} checkpoints in {self.directory} can be read; "
                "remove them to begin anew"
            )
        return None

    def _forget_old(self, newest: int, path: Path) -> None:
        """Remove all but the last `keep`, and those after step `newest`.

        Where there are some after it, the run went back to an earlier step, and goes on differently.
        """
        wanted = [step for step in self.steps() if step <= newest][-self._keep :]
        for step, _, other in self._named():
            if (step not in wanted and step != self.held) or (step == newest and other != path):
                _remove(other)
        for name in _OLD_NAMES:
            if name != "best.pt" or _bests(self.directory):
                (self.directory / name).unlink(missing_ok=True)


def best_checkpoint(directory: Path) -> Path | None:
    """The best checkpoint of a trainer; None if it has none."""
    found = _bests(directory)
    if found:
        return found[-1]
    old = directory / ("best" + _FILE)
    return old if old.exists() else None


def read_best(directory: Path, *, tensors: bool = True) -> State | None:
    """The best checkpoint of a trainer, which may still train and replace it; None if it has none.

    Without `tensors`, only its plain values are needed. Raises CheckpointError if it cannot be read.
    """
    while (path := best_checkpoint(directory)) is not None:
        try:
            return read_checkpoint(path) if tensors or path.suffix == _FILE else read_plain(path, FORMAT)
        except CheckpointError:
            if best_checkpoint(directory) == path:
                raise
    return None


def read_checkpoint(path: Path, like: State | None = None) -> State:
    """Read and check a checkpoint; `like` as `read_sharded`. Raises CheckpointError if it is damaged or not there."""
    if path.suffix != _FILE:
        return read_sharded(path, FORMAT, like)
    state = read_state(path)
    require_format(path, state, _FORMAT_1)
    return state


def _bests(directory: Path) -> list[Path]:
    """The directories of best checkpoints, the one that counts last; a killed process may leave two."""
    found = [(int(m[1]), path) for path in directory.glob("best.*") if (m := _BEST.fullmatch(path.name))]
    return [path for _, path in sorted(found)]


def _remove(path: Path) -> None:
    """Remove a checkpoint; rename it first, so that a killed process leaves no half under its name."""
    if path.is_dir() and not path.is_symlink():
        if path.suffix != TEMPORARY_SUFFIX:
            path = path.rename(path.with_name(path.name + TEMPORARY_SUFFIX))
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
