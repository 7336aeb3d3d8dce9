"""A stand-in for the worker processes of an engine: a thread that does what a function of a test says.

    def sim(work: Work) -> ChunkResult:
        return work.finish(Outcome.OK)

    Engine(…, start_process=partial(ThreadProcess, sim))

It speaks through a real socket and writes into the real ledger; only the operating system's part of it is made up.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

from merlin.base.records import to_plain
from merlin.errors import LeaseLostError
from merlin.execution.pool import LOGS_DIR, WorkerProcess
from merlin.execution.wire import Channel, received
from merlin.ledger.records import RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.pieces import pieces_of
from merlin.plan.tasks import Chunk, ChunkResult, Outcome
from merlin.workspace.directory import Workspace


class Work:
    """A chunk, and what its process can do with it."""

    def __init__(self, process: ThreadProcess, ledger: LedgerWriter, chunk: Chunk) -> None:
        self._process, self._ledger, self.chunk = process, ledger, chunk

    def finish(self, outcome: Outcome = Outcome.OK, **result: Any) -> ChunkResult:
        """Commit this outcome of every task; the result that is to be returned."""
        pieces = list(pieces_of(self.chunk))
        self.commit(*pieces, outcome=outcome)
        runs = tuple((lo, hi, int(outcome)) for lo, hi in pieces)
        return ChunkResult(chunk=self.chunk, runs=runs, **result)

    def commit(self, *pieces: tuple[int, int], outcome: Outcome = Outcome.OK) -> None:
        """Ask to, and write down how these tasks ended. Raises LeaseLostError."""
        self.say(op="commit")
        answers = [message["op"] for message in self._process.theirs.receive(wait=True)]
        if "go" not in answers:
            raise LeaseLostError("the chunk was given to another worker")
        chunk = self.chunk
        records = [
            RangeRecord(instance=chunk.instance, lo=lo, hi=hi, outcome=outcome, attempt=chunk.attempt)
            for lo, hi in pieces
        ]
        self._process.append(self._ledger, records)

    def say(self, **message: Any) -> None:
        self._process.theirs.send(message)

    def say_nonsense(self) -> None:
        self._process.theirs.sock.sendall(b"what?\n")

    def hang(self) -> None:
        """Until it is killed."""
        self._process.has_ended.wait()
        raise LeaseLostError("killed")

    def hang_up(self) -> None:
        """Close the socket, and do not end."""
        self._process.theirs.sock.shutdown(socket.SHUT_RDWR)
        self.hang()

    def wait_for_stop(self) -> None:
        """Until it is told to end soon."""
        self._process.theirs.receive(wait=True)

    def exit(self, code: int) -> None:
        """End with this exit code, or of that signal if it is negative."""
        raise _Exit(code)


class _Exit(Exception):
    pass


class _Handle:
    """What is used of a `subprocess.Popen`."""

    def __init__(self, ended: threading.Event) -> None:
        self.pid = os.getpid()
        self.returncode: int | None = None
        self._ended = ended

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired([], timeout or 0.0)
        assert self.returncode is not None
        return self.returncode


class ThreadProcess(WorkerProcess):
    """Runs chunks as `run_chunk` says; ends at its start if `start` raises `SystemExit`."""

    def __init__(
        self,
        run_chunk: Callable[[Work], ChunkResult | None],
        workspace: Workspace,
        name: str,
        *,
        session: str,
        start: Callable[[], object] = lambda: None,
        **_: Any,
    ) -> None:
        self.name, self.is_ready, self.is_leaving, self.is_closed = name, False, False, False
        self.chunk: Chunk | None = None
        self.ended = self.failed = 0
        self.crash = ""
        self.log, self._log_start = workspace.info / LOGS_DIR / f"{name}.err", 0
        ours, theirs = socket.socketpair()
        self.channel, self.theirs = Channel(ours), Channel(theirs)
        self.pidfd = os.eventfd(0)
        self.has_ended = threading.Event()
        self._handle = _Handle(self.has_ended)
        self.process = cast("subprocess.Popen[bytes]", self._handle)
        self._lock = threading.Lock()
        self._start, self._run_chunk = start, run_chunk
        threading.Thread(target=self._main, args=(workspace, session), daemon=True).start()

    def _main(self, workspace: Workspace, session: str) -> None:
        code = 1
        try:
            self._start()
            plan = workspace.plan
            with LedgerWriter(
                workspace.ledger_dir, self.name, session=session, study_id=plan.study_id, sync=False
            ) as ledger:
                self.theirs.send({"op": "ready"})
                self._serve(ledger)
            code = 0
        except LeaseLostError:
            code = 0
        except (_Exit, SystemExit) as error:
            code = int(error.args[0])
        finally:
            self._end(code)
            self.theirs.close()

    def _serve(self, ledger: LedgerWriter) -> None:
        while messages := self.theirs.receive(wait=True):
            for message in messages:
                if message["op"] != "run":
                    return
                result = self._run_chunk(Work(self, ledger, received(message["chunk"], Chunk)))
                if result is not None:
                    self.theirs.send({"op": "result", "result": to_plain(result)})

    def append(self, ledger: LedgerWriter, records: list[RangeRecord]) -> None:
        """What was killed writes nothing."""
        with self._lock:
            if self._handle.returncode is not None:
                raise LeaseLostError("killed")
            ledger.append(*records)

    def _end(self, code: int) -> None:
        with self._lock:
            if self._handle.returncode is None:
                self._handle.returncode = code
                with suppress(OSError):
                    self.theirs.sock.shutdown(socket.SHUT_RDWR)
                os.eventfd_write(self.pidfd, 1)
                self.has_ended.set()

    def kill(self) -> None:
        self.is_leaving = True
        self._end(-signal.SIGKILL)

    def stand_in_for(self, pid: int) -> None:
        """What /proc says of that process is said of this one."""
        self._handle.pid = pid

    def close(self) -> None:
        super().close()
        self.is_closed = True
