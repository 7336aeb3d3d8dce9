"""`python -m MODULE` as a copy of a process that has loaded the module, for what merlin starts by `subprocess.Popen`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from types import SimpleNamespace
from typing import Any


def fork_trainers() -> None:
    """The trainers that `merlin train` starts from here on are copies of this process."""
    from merlin.train import launch

    launch.subprocess = SimpleNamespace(Popen=ForkedModule)  # type: ignore[assignment]


class ForkedModule(subprocess.Popen):  # type: ignore[type-arg]
    """The process of `[python, "-m", module, …]`, as it would be after exec, but with all modules loaded."""

    def __init__(
        self, argv: Sequence[str], *, pass_fds: Sequence[int], env: dict[str, str], **more: Any
    ) -> None:
        def become() -> None:
            _close_all_but({0, 1, 2, *pass_fds})
            _reset_signals()
            take_environment(env)
            sys.argv = list(argv[2:])
            os._exit(_exit_code_of(argv[2]))

        super().__init__(argv, pass_fds=pass_fds, env=env, preexec_fn=become, **more)


def take_environment(env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


def _close_all_but(kept: set[int]) -> None:
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        try:
            os.close(fd)
        except OSError:
            continue  # the list itself


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)


def _exit_code_of(module: str) -> int:
    """Call the function `main` of a module, as `python -m` would."""
    try:
        code = int(import_module(module).main())
    except BaseException:  # noqa: BLE001  nothing may run on in the copy of the command
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code
