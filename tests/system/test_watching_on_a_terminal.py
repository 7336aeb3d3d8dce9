"""`merlin status --watch` in a real terminal of 80 columns and 24 lines."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

from commands import run_merlin
from waiting import wait_until

SPEC = """
description: {name: demo, description: d}
study:
  - {name: simulate, description: d, run: {cmd: "echo $(X) says hello"}}
merlin:
  samples:
    generate: {method: sobol, num: 40, bounds: {X: [0, 1]}}
    column_labels: [X]
"""
_ESCAPES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[()][AB0]|\x1b\][^\x07]*\x07|\x1b[=>]")


class Terminal:
    """A program in a terminal: what it has written, and the keys that it gets."""

    def __init__(self, command: list[str], cwd: Path, environment: dict[str, str]) -> None:
        self._fd, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, cwd=cwd, env=environment, start_new_session=True
        )
        os.close(other)
        self.written = b""

    def read(self) -> bytes:
        while select.select([self._fd], [], [], 0)[0]:
            try:
                self.written += os.read(self._fd, 65536)
            except OSError:  # the program has closed its side
                break
        return _ESCAPES.sub(b"", self.written)

    def shows(self, *texts: str) -> None:
        """Wait until it has written all this, and forget what was before."""
        wait_until(
            lambda: all(text.encode() in self.read() for text in texts),
            lambda: self.read().decode(errors="replace")[-2000:],
        )
        self.written = b""

    def press(self, keys: str) -> None:
        os.write(self._fd, keys.encode())


def test_a_study_is_watched_from_its_steps_to_a_log_and_left_with_q_or_sigterm(tmp_path: Path) -> None:
    (tmp_path / "demo.yaml").write_text(SPEC)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}
    environment |= {"HOME": str(tmp_path), "TERM": "xterm-256color", "NO_COLOR": "1"}
    assert run_merlin("run", "demo.yaml", "--local", cwd=tmp_path, env=environment).returncode == 0
    (workspace,) = (path.parent for path in tmp_path.glob("*/merlin_info"))
    command = [sys.executable, "-m", "merlin.cli", "status", "--watch", workspace.name]
    without = run_merlin("status", "--watch", workspace.name, cwd=tmp_path, env=environment)
    assert without.returncode == 2
    assert "merlin monitor" in without.stderr
    terminal = Terminal(command, tmp_path, environment)
    terminal.shows("40 planned = 40 ok")
    terminal.press("\r")
    terminal.shows("tasks of simulate", "FINISHED")
    terminal.press("\r")
    terminal.shows("says hello")
    terminal.press("q")
    wait_until(lambda: terminal.process.poll() is not None, lambda: terminal.read().decode(errors="replace"))
    assert terminal.process.returncode == 0
    assert b"Traceback" not in terminal.read()
    assert b"\x1b[?1049l" in terminal.written, "the terminal is as it was before"
    other = Terminal(command, tmp_path, environment)
    other.shows("40 planned = 40 ok")
    other.process.terminate()
    wait_until(lambda: other.process.poll() is not None, lambda: other.read().decode(errors="replace"))
    assert other.process.returncode == 128 + signal.SIGTERM
    other.read()
    assert b"\x1b[?1049l" in other.written
