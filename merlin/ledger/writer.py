"""Append records to the segment of this process."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType

from merlin.base.files import remedy, sync_path
from merlin.errors import LedgerError
from merlin.ledger.format import SUFFIX, SegmentHeader, Writer, encode_payload, frame
from merlin.ledger.records import Record

SYNC_S = 5.0


class LedgerWriter:
    """The segment `<host>-<pid>-<random>.mlg` of one process. No other process writes to it.

    After `append` returns, the record survives `kill -9` of the writer. A loss of power costs at most the records of
    the last `SYNC_S` seconds, whose tasks run again. A sync also commits the files that tasks have just written, so a
    sync per record would slow short tasks down. Without `sync` the operating system decides when to write.
    """

    def __init__(
        self,
        directory: Path,
        worker: str,
        *,
        session: str = "",
        study_id: str = "",
        host: str | None = None,
        pid: int | None = None,
        sync: bool = True,
    ) -> None:
        """Create the segment. Raises LedgerError if the directory cannot be written."""
        self.writer = Writer(
            worker=worker,
            host=socket.gethostname() if host is None else host,
            pid=os.getpid() if pid is None else pid,
            session=session,
            started=time.time(),
        )
        name = f"{prefix_of(self.writer.host, self.writer.pid)}{secrets.token_hex(4)}{SUFFIX}"
        self.path = Path(directory) / name
        self._sync = sync
        self._synced = time.monotonic()
        # NumPy takes a tenth of a second, and most workers on many machines write no segment themselves
        from merlin.ledger.encode import TailBudget, encode

        self._encode = partial(encode, budget=TailBudget())
        self._end = 0
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(
                self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
        except OSError as e:
            raise LedgerError(f"cannot create the ledger segment {self.path}: {e.strerror}") from e
        try:
            self._write(SegmentHeader(study_id=study_id, writers=(self.writer,)).to_bytes())
        except LedgerError:
            self.close()
            self.path.unlink(missing_ok=True)
            raise
        if sync:
            sync_path(self.path.parent)

    def append(self, *records: Record) -> None:
        """Append all records or none. Raises LedgerError after it has removed a partial write."""
        now = time.time()
        framed = [frame(encode_payload(*self._encode(record, now))) for record in records]
        if framed:
            self._write(b"".join(framed))

    def _write(self, data: bytes) -> None:
        if self._fd < 0:
            raise LedgerError(f"the ledger segment {self.path} is closed")
        view = memoryview(data)
        try:
            while view:  # one write, unless the disk is full: then the second one raises the error
                view = view[os.write(self._fd, view) :]
            if self._sync and time.monotonic() - self._synced >= SYNC_S:
                os.fdatasync(self._fd)
                self._synced = time.monotonic()
        except OSError as e:
            self._undo()
            e.filename = str(self.path)
            what = "the disk is full" if e.errno in (errno.ENOSPC, errno.EDQUOT) else e.strerror
            hint = f"; {todo}, then run merlin restart" if (todo := remedy(e, "")) else ""
            raise LedgerError(f"cannot append to the ledger segment {self.path}: {what}{hint}") from e
        self._end += len(data)

    def _undo(self) -> None:
        try:
            os.ftruncate(self._fd, self._end)
        except OSError:
            pass  # readers drop the torn record by its checksum

    @property
    def size_bytes(self) -> int:
        return self._end

    def close(self) -> None:
        if self._fd >= 0:
            if self._sync:
                with suppress(OSError):
                    os.fdatasync(self._fd)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> LedgerWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def prefix_of(host: str, pid: int) -> str:
    """The beginning of the names of a process's segments."""
    return f"{host}-{pid}-".replace("/", "_")
