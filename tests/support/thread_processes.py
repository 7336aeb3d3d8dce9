"""Threads in place of the worker processes of an engine. A function of the test decides what each chunk does.

    def sim(work: Work) -> ChunkResult:
        return work.finish(Outcome.OK)

    Engine(…, start_process=partial(ThreadProcess, sim))

The thread uses a real socket and writes into the real ledger. Only the operating system's process is simulated.
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

from merlin.errors import LeaseLostError
from merlin.execution.pool import LOGS_DIR, WorkerProcess
from merlin.execution.wire import Commit, Go, Message, MessageChannel, Ready, Result, Run
from merlin.ledger.records import RangeRecord
from merlin.ledger.writer import LedgerWriter
from merlin.plan.pieces import pieces_of
from merlin.plan.tasks import Chunk, ChunkResult, Outcome
from merlin.workspace.directory import Workspace


class Work:
    """A chunk, and the actions of the process that runs it."""

    def __init__(self, process: ThreadProcess, ledger: LedgerWriter, chunk: Chunk) -> None:
        self._process, self._ledger, self.chunk = process, ledger, chunk

    def finish(self, outcome: Outcome = Outcome.OK, **result: Any) -> ChunkResult:
        """Commit this outcome for every task, and return the result of the chunk."""
        pieces = list(pieces_of(self.chunk))
        self.commit(*pieces, outcome=outcome)
        runs = tuple((lo, hi, int(outcome)) for lo, hi in pieces)
        return ChunkResult(chunk=self.chunk, runs=runs, **result)

    def commit(self, *pieces: tuple[int, int], outcome: Outcome = Outcome.OK) -> None:
        """Ask for permission, then record how these tasks ended. Raises LeaseLostError."""
        self.send(Commit())
        if Go() not in self._process.theirs.receive(wait=True):
            raise LeaseLostError("the chunk was given to another worker")
        chunk = self.chunk
        records = [
            RangeRecord(instance=chunk.instance, lo=lo, hi=hi, outcome=outcome, attempt=chunk.attempt)
            for lo, hi in pieces
        ]
        self._process.append(self._ledger, records)

    def send(self, message: Message) -> None:
        self._process.theirs.send(message)

    def send_garbage(self, line: bytes = b"what?") -> None:
        self._process.theirs.sock.sendall(line + b"\n")

    def hang(self) -> None:
        """Wait until the process is killed."""
        self._process.has_ended.wait()
        raise LeaseLostError("killed")

    def close_socket(self) -> None:
        """Close the socket without ending the process."""
        self._process.theirs.sock.shutdown(socket.SHUT_RDWR)
        self.hang()

    def wait_for_stop(self) -> None:
        """Wait for the message to stop."""
        self._process.theirs.receive(wait=True)

    def exit(self, code: int) -> None:
        """End with this exit code; a negative code means that signal."""
        raise _Exit(code)


class _Exit(Exception):
    pass


class _ThreadHandle:
    """The part of `subprocess.Popen` that the engine uses."""

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
    """Calls `run_chunk` for each chunk. It ends at its start if `start` raises `SystemExit`."""

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
        self._gpus = ()
        self.error = self.crash = ""
        self.log, self._log_start = workspace.info / LOGS_DIR / f"{name}.err", 0
        self._log_name = workspace.below_root(f"{workspace.info.name}/{LOGS_DIR}/{self.log.name}")
        ours, theirs = socket.socketpair()
        self.channel, self.theirs = MessageChannel(ours), MessageChannel(theirs)
        self.pidfd = os.eventfd(0)
        self.has_ended = threading.Event()
        self._handle = _ThreadHandle(self.has_ended)
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
                self.theirs.send(Ready())
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
                if not isinstance(message, Run):
                    return
                result = self._run_chunk(Work(self, ledger, message.chunk))
                if result is not None:
                    self.theirs.send(Result(result))

    def append(self, ledger: LedgerWriter, records: list[RangeRecord]) -> None:
        """Append the records, unless the process was killed. Raises LeaseLostError then."""
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

    def use_state_of(self, pid: int) -> None:
        """Take the state of the process `pid` in /proc as the state of this one."""
        self._handle.pid = pid

    def close(self) -> None:
        super().close()
        self.is_closed = True
