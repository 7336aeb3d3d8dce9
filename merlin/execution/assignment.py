"""What the processes of a chunk may use of the machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from msgspec import Struct, field


class Assignment(Struct, frozen=True, kw_only=True):
    """Cores and GPUs, as a worker process gets them with a chunk."""

    cores: tuple[int, ...] = ()  # the processes stay on these; (): on those of their worker
    gpus: tuple[str, ...] = ()
    keeps_gpus: bool = False  # a function may keep its devices open until its process ends
    variables: Mapping[str, str] = field(default_factory=dict)  # of their environment

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Apply it to this process and to those that this thread starts."""
        before = {name: os.environ.get(name) for name in self.variables}
        cores = os.sched_getaffinity(0)
        os.environ.update(self.variables)
        try:
            if self.cores:
                with suppress(OSError):  # a core was taken away from us: the task runs all the same
                    os.sched_setaffinity(0, self.cores)
            yield
        finally:
            if self.cores:
                with suppress(OSError):
                    os.sched_setaffinity(0, cores)
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)  # a function may have removed it
                else:
                    os.environ[name] = value
