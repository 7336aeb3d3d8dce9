"""Starts programs as processes of "nodes": this machine under other host names, where it may be renamed."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import time

_CLONE_NEWUTS = 0x04000000


def marked(mark: str) -> list[int]:
    """Every process with this word in its environment, but not this one."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and int(entry) != os.getpid():
            try:
                with open(f"/proc/{entry}/environ", "rb") as file:
                    if mark.encode() in file.read().split(b"\0"):
                        found.append(int(entry))
            except OSError:
                continue
    return found


def signal_all(pids: list[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except OSError:
            continue


def start(
    host: str, argv: list[str], env: dict[str, str], *, cwd: str = "", files: tuple[str, str] = ("", "")
) -> int:
    """Start a program on a "node"; `files` are for its output and errors, "" as this process has them."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _be_on(host)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        if cwd:
            os.chdir(cwd)
        _redirect(*files)
        os.execvpe(argv[0], argv, env)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
    os._exit(127)


def _be_on(host: str) -> None:
    if host and host != socket.gethostname() and ctypes.CDLL(None).unshare(_CLONE_NEWUTS) == 0:
        socket.sethostname(host)


def _redirect(output: str, error: str) -> None:
    if output:
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(file, 1)
        os.dup2(
            file if error in ("", output) else os.open(error, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
            2,
        )


def run_all(tasks: list[tuple[str, list[str], dict[str, str]]]) -> int:
    """Run (host, argv, environment) side by side, pass signals on to them, return the first failure's exit code."""
    pids: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        signal_all(pids, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, pass_on)
    pids += [start(*task) for task in tasks]
    codes = [exit_code(os.waitpid(pid, 0)[1]) for pid in pids]
    return next((code for code in codes if code), 0)


def exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def detach() -> bool:
    """Go on as a child of init, without a terminal; returns False in the process that called."""
    if pid := os.fork():
        os.waitpid(pid, 0)
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for entry in os.listdir("/proc/self/fd"):  # pipes of a caller that waits for their end
        if int(entry) > 2:
            try:
                os.close(int(entry))
            except OSError:
                continue
    return True


def pause() -> None:
    time.sleep(0.03)
