"""Processes that read batches into shared memory, each its turn, so that batches come back in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
import weakref
from collections import deque
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch

from merlin.errors import LoaderError, MerlinError
from merlin.shards.format.segments import Array
from merlin.train.loading.dataset import ShardDataset
from merlin.train.loading.ring import Ring

_LOOK_S = 2.0  # how often each side checks that the other is alive, in case its end of the pipe stays open
_LEAVE_S = 5.0


class LoaderPool:
    """Workers 0 … n - 1; task t is done by worker t mod n."""

    def __init__(self, dataset: ShardDataset, raw: bool, ring: Ring, num: int, method: str | None) -> None:
        context: Any = multiprocessing.get_context(method)
        self._pid = os.getpid()
        self._turn = 0
        self._pending: deque[int] = deque()
        self._connections: list[Connection] = []
        self._processes: list[Any] = []
        forked = context.get_start_method() == "fork"
        self._finalizer = weakref.finalize(self, _stop, self._pid, self._connections, self._processes)
        if forked:
            dataset.reader(raw).prepare()  # shared with the workers as long as nobody writes to it
        try:
            for number in range(num):
                ours, theirs = context.Pipe()
                inherited = (*self._connections, ours) if forked else ()
                process = context.Process(
                    target=_work,
                    args=(number, theirs, inherited, dataset, raw, ring),
                    name=f"merlin-loader-{number}",
                    daemon=True,
                )
                self._connections.append(ours)
                process.start()
                self._processes.append(process)
                theirs.close()
        except BaseException:
            self.close()
            raise

    @property
    def usable(self) -> bool:
        """True while this process may give it tasks."""
        return self._finalizer.alive and self._pid == os.getpid()

    def submit(self, slot: int, indices: Array) -> None:
        """Have samples `indices` read into a slot of the ring."""
        worker, self._turn = self._turn, (self._turn + 1) % len(self._processes)
        try:
            self._connections[worker].send((slot, indices))
        except OSError as e:
            raise self._dead(worker) from e
        self._pending.append(worker)

    def collect(self) -> dict[str, int]:
        """Wait for the oldest task; returns the length that each array of its slot has now.

        Raises what the worker raised, or LoaderError if it died.
        """
        worker = self._pending.popleft()
        connection = self._connections[worker]
        try:
            while not connection.poll(_LOOK_S):
                if not self._processes[worker].is_alive() and not connection.poll(0):
                    raise self._dead(worker)
            reply = connection.recv()
        except (EOFError, OSError) as e:
            raise self._dead(worker) from e
        if isinstance(reply, MerlinError):
            raise reply
        return reply  # type: ignore[no-any-return]

    def drain(self) -> None:
        """Wait for what an earlier iteration asked for and does not want any more."""
        while self._pending:
            try:
                self.collect()
            except MerlinError:
                if not self.usable:
                    raise

    def _dead(self, worker: int) -> LoaderError:
        process = self._processes[worker]
        process.join(_LEAVE_S)
        code = process.exitcode
        how = "left" if code is None else f"exited with code {code}"
        if code is not None and code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
        if code == -signal.SIGBUS:
            how += ": a shard was cut off while it was read, or its disk fails; run merlin shards verify"
        self.close()
        return LoaderError(
            f"loader worker {worker} (pid {process.pid}) {how} while it was reading; "
            "the system's log tells whether memory ran out, `merlin shards verify` whether a shard was cut short"
        )

    def close(self) -> None:
        """Ask the workers to end, and wait until they have."""
        self._finalizer()


def _stop(pid: int, connections: Sequence[Connection], processes: Sequence[Any]) -> None:
    if pid != os.getpid():
        return  # a fork's copy: the workers belong to its parent
    for connection in connections:
        connection.close()
    for process in processes:
        process.join(_LEAVE_S)
        if process.exitcode is None:
            process.kill()
            process.join()


def _work(
    number: int,
    connection: Connection,
    inherited: Sequence[Connection],
    dataset: ShardDataset,
    raw: bool,
    ring: Ring,
) -> None:
    """Read what is asked for, until the other end closes or its process is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the trainer, which closes the pipe
    for other in inherited:
        other.close()
    torch.set_num_threads(1)
    parent = os.getppid()
    reader, slots = dataset.reader(raw), ring.slots()
    while True:
        try:
            while not connection.poll(_LOOK_S):
                if os.getppid() != parent:  # a fork may hold the other end open
                    return
            slot, indices = connection.recv()
            reply: Any
            try:
                reply = {key: len(values) for key, values in reader.read(indices, slots[slot]).items()}
            except Exception as e:  # noqa: BLE001 - it is raised in the trainer
                reply = _sendable(e, number)
            connection.send(reply)
        except (EOFError, OSError):
            return


def _sendable(error: Exception, number: int) -> MerlinError:
    """An error that can cross the pipe: one of our own, or any other one as text."""
    if isinstance(error, MerlinError) and type(error).__init__ is Exception.__init__:
        return error
    return LoaderError(
        f"loader worker {number} failed: {type(error).__name__}: {error}\n{traceback.format_exc()}"
    )
