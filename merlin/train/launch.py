"""Trainers as processes of this machine: started together, watched, and ended with this process."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.base.files import end_of
from merlin.train.config import TrainConfig
from merlin.train.events import StopRequest
from merlin.train.parallel.rendezvous import serve_store
from merlin.train.process import EVENTS_FD, EXIT_STOPPED, GRACE_S
from merlin.train.reports import Note, Report, TrainObserver, from_line
from merlin.train.run_directory import RunDirectory
from merlin.train.tournament.presence import announce, presence_directory, withdraw

TAIL_LINES, TAIL_BYTES = 15, 1 << 16
_POLL_S = 0.2  # a process may end without closing its pipe
_BREAK_S = 10.0  # for the other ranks of a trainer to end after one of them failed
_OK = (None, 0, EXIT_STOPPED)  # exit codes of ranks that did not fail, or are alive
_OF_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "ROLE_RANK")

Outcome = Literal["finished", "stopped", "failed"]


class TrainerOutcome(Struct, frozen=True):
    """How a trainer ended; `log_tail` is that of one that failed."""

    trainer: int
    outcome: Outcome
    report: Report
    log_tail: str = ""


class _Child(Struct):
    """The process of one rank."""

    process: subprocess.Popen[bytes]
    events: int  # to be read from; -1 when it has ended
    life: int  # the child stops when this is closed
    buffer: bytes = b""


class _Trainer(Struct):
    index: int
    report: Report
    children: list[_Child] = field(default_factory=list)
    kill_at: float | None = None  # when the other ranks of a trainer that failed are killed

    def codes(self) -> list[int | None]:
        """The exit code of each rank; None for a rank that is alive."""
        return [child.process.poll() for child in self.children]


class LocalTrainers(Struct):
    """Trainers of a run, each a process or several; `run` returns when all have ended."""

    run_directory: RunDirectory
    config: TrainConfig
    observer: TrainObserver
    stop: StopRequest
    threads: int
    trainers: list[_Trainer] = field(default_factory=list)
    _stopping_since: float | None = None

    def run(self, indices: Sequence[int]) -> list[TrainerOutcome]:
        """Start these trainers and wait for them; a failed one ends the others unless they can do without it."""
        stores: list[Any] = []
        try:
            self._start(indices, stores)
            with selectors.DefaultSelector() as selector:
                for trainer in self.trainers:
                    for child in trainer.children:
                        selector.register(child.events, selectors.EVENT_READ, (trainer, child))
                self._watch(selector)
        finally:
            self._kill_all()
        return [self._outcome(trainer) for trainer in self.trainers]

    def _start(self, indices: Sequence[int], stores: list[Any]) -> None:
        """Start all ranks; `stores` keeps alive the stores at which they meet."""
        tournament = self.config.tournament
        per_trainer = tournament.ranks_per_trainer
        num = len(indices) * per_trainer
        together = tournament.transport == "process_group" and len(indices) > 1
        if together:
            stores.append(serve_store())
        elif self.config.is_tournament:
            announce(presence_directory(self.run_directory.tournament), indices)
        for place, index in enumerate(indices):
            self.run_directory.trainer(index).path.mkdir(parents=True, exist_ok=True)
            trainer = _Trainer(index, Report(index))
            self.trainers.append(trainer)
            if not together and per_trainer > 1:
                stores.append(serve_store())
            for rank in range(per_trainer):
                local = place * per_trainer + rank
                env = {"LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(num)}
                if stores:
                    number, size = (local, num) if together else (rank, per_trainer)
                    env |= {"RANK": str(number), "WORLD_SIZE": str(size), "MASTER_PORT": str(stores[-1].port)}
                trainer.children.append(self._spawn(index, env, alone=not together))

    def _environment(self, changed: dict[str, str]) -> dict[str, str]:
        """This process's environment with torchrun's variables.

        Without a port, the process that gets it is a world of its own.
        """
        threads = str(self.threads)
        env = {name: value for name, value in os.environ.items() if name not in _OF_TORCHRUN}
        env |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **changed}
        if "MASTER_PORT" in changed:
            env |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
            if sys.platform == "linux":
                env.setdefault("GLOO_SOCKET_IFNAME", "lo")
        return env

    def _spawn(self, index: int, changed: dict[str, str], *, alone: bool) -> _Child:
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
                    env={**self._environment(changed), EVENTS_FD: str(theirs)},
                    pass_fds=(theirs,),
                    process_group=0,  # Ctrl-C is passed on once, by us
                )
        finally:
            os.close(theirs)
            os.close(life_theirs)
        return _Child(process, events, life)

    def _watch(self, selector: selectors.BaseSelector) -> None:
        alive = True
        while alive:
            alive = any(None in t.codes() for t in self.trainers)  # what the last one reported is still read
            while found := selector.select(_POLL_S if alive else 0):
                for key, _ in found:
                    trainer, child = key.data
                    if not self._read(trainer, child):
                        selector.unregister(child.events)
                        os.close(child.events)
                        child.events = -1
                if alive:
                    break
            self._check()

    def _read(self, trainer: _Trainer, child: _Child) -> bool:
        """Pass on what a rank reports; False when it has nothing more to report."""
        data = os.read(child.events, 1 << 16)
        *lines, child.buffer = (child.buffer + data).split(b"\n")
        for line in lines:
            message = from_line(line.decode())
            if isinstance(message, Report):
                trainer.report = message
                self.observer.report(message)
            else:
                self.observer.note(message)
        return bool(data)

    def _check(self) -> None:
        """Notice who failed, and who takes too long to stop."""
        now = time.monotonic()
        if self.stop() and self._stopping_since is None:
            self._stopping_since = now
            self._signal(self._children(), signal.SIGTERM)
        for trainer in self.trainers:
            failed = next((code for code in trainer.codes() if code not in _OK), None)
            if trainer.kill_at is None and failed is not None:
                trainer.kill_at = now + _BREAK_S
                self._report_failure(trainer, failed)
                if self.config.tournament.transport != "files" and self.config.tournament.trainers > 1:
                    self.stop.ask(f"trainer {trainer.index} failed")
            if trainer.kill_at is not None and now > trainer.kill_at:
                self._signal(trainer.children, signal.SIGKILL)
        if self._stopping_since is not None and now > self._stopping_since + 2 * GRACE_S:
            self._signal(self._children(), signal.SIGKILL)

    def _report_failure(self, trainer: _Trainer, code: int) -> None:
        reason = f"exit code {code}" if code > 0 else f"ended by {signal.Signals(-code).name}"
        errors = [line for line in self._tail(trainer.index).splitlines() if line.startswith("error: ")]
        why = errors[-1].removeprefix("error: ") if errors else reason
        if self.config.is_tournament:
            withdraw(presence_directory(self.run_directory.tournament), trainer.index)
        trainer.report = replace(trainer.report, state="failed", reason=why)
        self.observer.report(trainer.report)
        log = self.run_directory.trainer(trainer.index).log
        self.observer.note(Note(trainer.index, f"failed ({reason}); its log: {log}"))

    def _outcome(self, trainer: _Trainer) -> TrainerOutcome:
        if trainer.kill_at is not None:
            return TrainerOutcome(trainer.index, "failed", trainer.report, self._tail(trainer.index))
        finished = set(trainer.codes()) == {0}
        return TrainerOutcome(trainer.index, "finished" if finished else "stopped", trainer.report)

    def _tail(self, index: int) -> str:
        """The last lines of a trainer's log."""
        lines = end_of(self.run_directory.trainer(index).log, TAIL_BYTES).splitlines()
        return "\n".join(lines[-TAIL_LINES:])

    def _children(self) -> list[_Child]:
        return [child for trainer in self.trainers for child in trainer.children]

    def _signal(self, children: Iterable[_Child], number: int) -> None:
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
