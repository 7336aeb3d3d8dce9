"""`python -m MODULE` as a copy of a process that has loaded the needed modules, for processes that merlin starts."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NoReturn


def fork_trainers() -> None:
    """From now on, start the trainers of `merlin train` as copies of this process."""
    from merlin.train import launch

    launch.subprocess = _with(Popen=ForkedModule)  # type: ignore[assignment]


def fork_workers() -> None:
    """From now on, start workers of a run, and processes that try functions, as copies, unless a thread forbids it.

    A command whose steps are all of the shell makes copies by itself, if it has none of the libraries that are loaded
    here.
    """
    from merlin.execution import fork_server, forked, pool, try_import

    forked._NOT_TO_BE_COPIED = ("mpi4py",)
    fork_server.subprocess = pool.subprocess = try_import.subprocess = _with(Popen=_forked_alone)  # type: ignore[assignment]


def fork_celery() -> None:
    """From now on, start Celery workers of `merlin run-workers` on this machine as copies, too."""
    from merlin.execution.distributed import start

    start.subprocess = _with(Popen=_forked_alone)  # type: ignore[assignment]


def _with(**changed: object) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(subprocess), **changed})


def _forked_alone(argv: Sequence[str], **more: Any) -> subprocess.Popen[Any]:
    is_module = argv[0] == sys.executable and "-m" in argv
    start = ForkedModule if is_module and threading.active_count() == 1 else subprocess.Popen
    return start(argv, **more)  # type: ignore[no-any-return]


class ForkedModule(subprocess.Popen):  # type: ignore[type-arg]
    """The process of `[python, "-m", module, …]`, as it would be after exec, but with all modules loaded."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        def become() -> None:
            _close_all_but({0, 1, 2, *pass_fds})
            _reset_signals()
            if env is not None:
                take_environment(env)
            sys.dont_write_bytecode |= "-B" in argv[1 : argv.index("-m")]
            end(exit_code_of_module(argv[argv.index("-m") + 1 :]))

        super().__init__(argv, pass_fds=pass_fds, env=env, preexec_fn=become, **more)


def take_environment(env: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)


def exit_code_of_module(argv: Sequence[str]) -> int:
    """Run ARGV as `python -m ARGV` would; returns the exit code."""
    name = f"{argv[0]}.__main__" if hasattr(sys.modules.get(argv[0]), "__path__") else argv[0]
    sys.argv = list(argv)
    sys.modules.pop(name, None)  # so that it is run, and not taken as imported
    return exit_code_of(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))


def exit_code_of(main: Any) -> int:
    """Run `main`; returns the exit code of an interpreter that runs it, and prints errors as it does."""
    try:
        main()
    except SystemExit as stop:
        if stop.code is None or isinstance(stop.code, int):
            return stop.code or 0
        print(stop.code, file=sys.stderr)
        return 1
    except BaseException:  # noqa: BLE001  the copy of the process must not run any further
        traceback.print_exc()
        return 1
    return 0


def end(code: int) -> NoReturn:
    """End as an interpreter does, but do not free the objects that are left: that takes half a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _close_all_but(kept: set[int]) -> None:
    for fd in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        try:
            os.close(fd)
        except OSError:
            continue  # the descriptor of the listing itself


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
