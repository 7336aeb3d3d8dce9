"""Trainers as processes of this machine: started together, watched, and gone when this process is."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from merlin.train.config import TrainConfig
from merlin.train.events import Note, Observer, Report, StopRequest, from_line
from merlin.train.process import EVENTS_FD, EXIT_STOPPED, GRACE_S
from merlin.train.run_directory import RunDirectory
from merlin.train.tournament.presence import announce, give_up, presence_directory

TAIL_LINES = 15
_LOOK_S = 0.2  # a process may end without closing its pipe
_BREAK_S = 10.0  # for the ranks of a trainer after one of them failed

Outcome = Literal["finished", "stopped", "failed"]


@dataclass(frozen=True)
class TrainerOutcome:
    """How a trainer ended; `log_tail` is that of one that failed."""

    trainer: int
    outcome: Outcome
    report: Report
    log_tail: str = ""


@dataclass
class _Child:
    """One rank."""

    trainer: int
    process: subprocess.Popen[bytes]
    events: int  # to be read from; -1 when it has ended
    life: int  # closing it tells the child to leave
    buffer: bytes = b""


@dataclass
class _Trainer:
    index: int
    children: list[_Child]
    report: Report
    failed: bool = False
    break_at: float | None = None  # when those are killed that still live

    @property
    def alive(self) -> bool:
        return any(child.process.poll() is None for child in self.children)


@dataclass
class LocalTrainers:
    """Trainers of a run, each a process or several; `run` returns when all have ended."""

    run_directory: RunDirectory
    config: TrainConfig
    observer: Observer
    stop: StopRequest
    threads: int
    trainers: list[_Trainer] = field(default_factory=list)
    _stopping_since: float | None = None

    @property
    def elastic(self) -> bool:
        """Whether trainers can do without each other."""
        return self.config.tournament.transport == "files" or self.config.tournament.trainers == 1

    def run(self, indices: Sequence[int]) -> list[TrainerOutcome]:
        """Start these trainers and wait for them; a failed one ends the others unless they can do without it."""
        stores: list[Any] = []
        try:
            self._start(indices, stores)
            with selectors.DefaultSelector() as selector:
                for child in self._children():
                    selector.register(child.events, selectors.EVENT_READ, child)
                self._watch(selector)
        finally:
            self._kill_all()
        return [self._outcome(trainer) for trainer in self.trainers]

    def _start(self, indices: Sequence[int], stores: list[Any]) -> None:
        per_trainer = self.config.tournament.ranks_per_trainer
        num = len(indices) * per_trainer
        together = self.config.tournament.transport == "process_group" and len(indices) > 1
        address = _serve_store(stores) if together else None
        if self.config.is_tournament and not together:
            announce(presence_directory(self.run_directory.tournament), indices)
        for place, index in enumerate(indices):
            self.run_directory.trainer(index).path.mkdir(parents=True, exist_ok=True)
            trainer = _Trainer(index, [], Report(index))
            self.trainers.append(trainer)
            if not together and per_trainer > 1:
                address = _serve_store(stores)
            for rank in range(per_trainer):
                local = place * per_trainer + rank
                seat = (local, num) if together else (rank, per_trainer)
                env = self._environment(seat, local, num, address)
                trainer.children.append(self._spawn(index, env, alone=not together))

    def _environment(
        self, seat: tuple[int, int], local: int, num: int, address: str | None
    ) -> dict[str, str]:
        """torchrun's variables; without an address the process is a world of its own."""
        known = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK")
        env = {name: value for name, value in os.environ.items() if name not in known}
        env |= {"OMP_NUM_THREADS": str(self.threads), "MKL_NUM_THREADS": str(self.threads)}
        env |= {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(num), "PYTHONUNBUFFERED": "1"}
        if address is not None:
            host, port = address.split()
            env |= {
                "RANK": str(seat[0]),
                "WORLD_SIZE": str(seat[1]),
                "MASTER_ADDR": host,
                "MASTER_PORT": port,
            }
            env |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}
            if sys.platform == "linux":
                env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return env

    def _spawn(self, index: int, env: dict[str, str], *, alone: bool) -> _Child:
        events, theirs = os.pipe()
        life_theirs, life = os.pipe()
        command = [sys.executable, "-m", "merlin.train.process", str(self.run_directory.path)]
        command += ["--trainer", str(index)] if alone else []
        try:
            with self.run_directory.trainer(index).log.open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=life_theirs,
                    stdout=log,
                    stderr=log,
                    env={**env, EVENTS_FD: str(theirs)},
                    pass_fds=(theirs,),
                    process_group=0,  # Ctrl-C is passed on once, by us
                )
        finally:
            os.close(theirs)
            os.close(life_theirs)
        return _Child(index, process, events, life)

    def _watch(self, selector: selectors.BaseSelector) -> None:
        alive = True
        while alive:
            alive = any(trainer.alive for trainer in self.trainers)  # what the last one said is still read
            while found := selector.select(_LOOK_S if alive else 0):
                for key, _ in found:
                    child: _Child = key.data
                    if not self._read(child):
                        selector.unregister(child.events)
                        os.close(child.events)
                        child.events = -1
                if alive:
                    break
            self._look()

    def _read(self, child: _Child) -> bool:
        """Pass on what a rank reports; False when it has nothing more to say."""
        data = os.read(child.events, 1 << 16)
        *lines, child.buffer = (child.buffer + data).split(b"\n")
        trainer = next(t for t in self.trainers if t.index == child.trainer)
        for line in lines:
            told = from_line(line.decode())
            if isinstance(told, Report):
                trainer.report = told
                self.observer.report(told)
            else:
                self.observer.note(told)
        return bool(data)

    def _look(self) -> None:
        """Notice who failed, and who takes too long to leave."""
        now = time.monotonic()
        if self.stop() and self._stopping_since is None:
            self._stopping_since = now
            self._signal(self._children(), signal.SIGTERM)
        for trainer in self.trainers:
            codes = [child.process.poll() for child in trainer.children]
            if not trainer.failed and any(code not in (None, 0, EXIT_STOPPED) for code in codes):
                trainer.failed = True
                trainer.break_at = now + _BREAK_S
                self._tell_failure(trainer)
                if not self.elastic:
                    self.stop.ask(f"trainer {trainer.index} failed")
            if trainer.break_at is not None and now > trainer.break_at:
                self._signal(trainer.children, signal.SIGKILL)
        if self._stopping_since is not None and now > self._stopping_since + 2 * GRACE_S:
            self._signal(self._children(), signal.SIGKILL)

    def _tell_failure(self, trainer: _Trainer) -> None:
        how = next(
            c for child in trainer.children if (c := child.process.poll()) not in (None, 0, EXIT_STOPPED)
        )
        reason = f"exit code {how}" if how > 0 else f"ended by {signal.Signals(-how).name}"
        last = [line for line in self._tail(trainer.index).splitlines() if line.startswith("error: ")]
        why = last[-1].removeprefix("error: ") if last else reason
        if self.config.is_tournament:
            give_up(presence_directory(self.run_directory.tournament), trainer.index)
        report = replace(trainer.report, state="failed", reason=why)
        trainer.report = report
        self.observer.report(report)
        self.observer.note(Note(trainer.index, f"failed ({reason}); its log: {self._log(trainer.index)}"))

    def _outcome(self, trainer: _Trainer) -> TrainerOutcome:
        if trainer.failed:
            return TrainerOutcome(trainer.index, "failed", trainer.report, self._tail(trainer.index))
        codes = {child.process.returncode for child in trainer.children}
        return TrainerOutcome(trainer.index, "finished" if codes == {0} else "stopped", trainer.report)

    def _log(self, index: int) -> Path:
        return self.run_directory.trainer(index).log

    def _tail(self, index: int) -> str:
        try:
            lines = self._log(index).read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(lines[-TAIL_LINES:])

    def _children(self) -> list[_Child]:
        return [child for trainer in self.trainers for child in trainer.children]

    def _signal(self, children: Sequence[_Child], number: int) -> None:
        for child in children:
            if child.process.poll() is None:
                with suppress(ProcessLookupError):
                    child.process.send_signal(number)

    def _kill_all(self) -> None:
        self._signal(self._children(), signal.SIGKILL)
        for child in self._children():
            child.process.wait()
            for descriptor in (child.life, child.events):
                if descriptor >= 0:
                    with suppress(OSError):
                        os.close(descriptor)


def _serve_store(keep: list[Any]) -> str:
    """A store for processes to meet at, alive as long as it is kept; its address as "host port"."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    keep.append(store)
    return f"127.0.0.1 {store.port}"
