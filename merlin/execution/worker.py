"""A worker process of the embedded executor: ``python -m merlin.execution.worker --workspace W --fd N …``, or a copy
of the command that calls `main` (see `forked`).

It leads its own session, runs one chunk at a time and reports the results over a socket. When the command that
started it ends, for whatever reason, it kills its tasks and exits.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback

from merlin.errors import LeaseLostError, MerlinError
from merlin.execution import wire
from merlin.execution.walltime import Walltime, Warnings

PROGRESS_S = 0.2  # between two progress messages
ORPHAN_GRACE_S = 5.0  # for a function call to return after the command has ended
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def main(argv: list[str] | None = None) -> int:
    """Run chunks until a message to exit arrives."""
    args = _parse(argv)
    # a segfault leaves its Python stack in the log, wherever descriptor 2 points then
    faulthandler.enable(os.dup(2))
    signal.signal(signal.SIGINT, lambda *_: None)  # a handler, not SIG_IGN: the tasks must not inherit it
    warnings = Warnings()
    warnings.listen()
    os.set_inheritable(args.fd, False)
    channel = wire.MessageChannel(socket.socket(fileno=args.fd))
    load_numpy(args.threads)
    is_ready = False
    try:
        worker = _Worker(args, channel, warnings)
        is_ready = True
        worker.serve()
        if worker.has_only_our_code:
            os._exit(0)  # all is written; a normal exit of Python takes longer than a short task
    except LeaseLostError:
        return 0
    except MerlinError as error:
        channel.send(wire.Error(str(error)))
        return 1
    except Exception as error:  # noqa: BLE001 - the outermost loop of the worker
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        # a bug of our own is no fault of the task, and the next worker would have it, too
        if is_ready and not isinstance(error, MemoryError):
            channel.send(wire.Error(f"worker {args.name}: internal error: {what}"))
        else:
            channel.send(wire.Crash(what))
        return 1
    return 0


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="merlin.execution.worker")
    parser.add_argument("--workspace", required=True)
    parser.add_argument("--plan", required=True, help="digest of the plan")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the command, inherited")
    parser.add_argument("--name", required=True)
    parser.add_argument("--session", required=True, help="of the run, for the ledger")
    parser.add_argument("--fenced", action="store_true", help="ask before each commit")
    parser.add_argument("--ends", type=float, help="epoch seconds: when the walltime is over")
    parser.add_argument("--threads", type=int, default=1, help="of numerical libraries in this process")
    return parser.parse_args(argv)


def load_numpy(num_threads: int) -> None:
    """Import NumPy with few BLAS threads, since the workers share the cores; tasks do not see the setting."""
    ours = [name for name in _THREAD_VARIABLES if name not in os.environ]
    os.environ.update(dict.fromkeys(ours, str(num_threads)))
    import numpy as np

    assert np
    for name in ours:
        del os.environ[name]


class _Worker:
    """The loop that runs chunks."""

    def __init__(self, args: argparse.Namespace, channel: wire.MessageChannel, warnings: Warnings) -> None:
        from merlin.execution.runner import ChunkRunner
        from merlin.ledger.writer import LedgerWriter
        from merlin.workspace.directory import open_same

        self._channel = channel
        self._last_progress = 0.0
        self._must_stop = False  # the message to stop came while a chunk ran
        self._is_void = False  # its chunk was given to another worker
        workspace = open_same(args.workspace, args.plan)
        self.has_only_our_code = not workspace.plan.has_functions
        self._ledger = LedgerWriter(
            workspace.ledger_dir, args.name, session=args.session, study_id=workspace.plan.study_id
        )
        self._runner = ChunkRunner(
            workspace,
            args.name,
            self._ledger,
            on_progress=self._progress,
            should_stop=self._should_stop,
            wake_fd=channel.fileno(),
            fence=self._wait_for_permission if args.fenced else None,
            walltime=Walltime(args.ends),
            warnings=warnings,
        )

    def serve(self) -> None:
        threading.Thread(target=_kill_when_orphaned, args=(self._channel,), name="watch", daemon=True).start()
        self._channel.send(wire.Ready())
        try:
            while not self._channel.is_closed:
                messages = self._channel.receive(wait=True)
                for at, message in enumerate(messages):
                    if not isinstance(message, wire.Run):
                        return
                    # a message that came together with the chunk can only be "stop"; it will not come again
                    self._must_stop = at + 1 < len(messages)
                    self._last_progress = time.monotonic()
                    result = self._runner.run(message.chunk, message.assignment)
                    self._channel.send(wire.Result(result))
                    if self._must_stop:
                        return
        finally:
            self._runner.close()
            self._ledger.close()

    def _should_stop(self) -> bool:
        return self._must_stop or self._channel.has_input()

    def _wait_for_permission(self) -> None:
        """Ask for permission to commit, and wait for it. Raises LeaseLostError if it is refused."""
        if not self._is_void:
            self._channel.send(wire.Commit())
        while not (self._is_void or self._channel.is_closed):
            may = False
            for message in self._channel.receive(wait=True):
                match message:
                    case wire.Go():
                        may = True
                    case wire.Void():
                        self._is_void = True
                    case _:
                        self._must_stop = True
            if may:
                return
        raise LeaseLostError("the chunk was given to another worker")

    def _progress(self, ended: int, failed: int) -> None:
        now = time.monotonic()
        if now - self._last_progress >= PROGRESS_S:
            self._last_progress = now
            self._channel.send(wire.Progress(ended, failed))


def _kill_when_orphaned(channel: wire.MessageChannel) -> None:
    """Wait for the end of the command; after a grace period, end the session.

    The main thread notices the end, too, except inside a call of the user's function.
    """
    from merlin.execution.sessions import kill_session

    poll = select.poll()
    poll.register(channel.sock, select.POLLRDHUP)
    poll.poll()
    time.sleep(ORPHAN_GRACE_S)
    kill_session(os.getsid(0))


if __name__ == "__main__":
    sys.exit(main())
