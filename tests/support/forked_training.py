"""`merlin train` for tests: a command forked from a server that has loaded torch, whose trainers are forked from it.

    process = ForkedTraining(config, "tournament.trainers=2", HOLD_AFTER=25)  # merlin train CONFIG …

Loading torch takes longer than most tests train. A test of how `merlin train` or its trainers start, and of what they
inherit, has to use `subprocess`.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from forked_module import fork_trainers, take_environment
from tournament_crew import CONTEXT


class ForkedTraining:
    """A running command, with the part of subprocess.Popen that tests use; `variables` are added to its environment."""

    def __init__(self, *words: object, **variables: object) -> None:
        self._output = tempfile.TemporaryDirectory()
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        env |= {"GLOO_SOCKET_IFNAME": "lo"} | {name: str(value) for name, value in variables.items()}
        paths = [str(self._path(name)) for name in ("out", "err")]
        arguments = ([str(word) for word in words], env, str(Path.cwd()), paths)
        self._process = CONTEXT.Process(target=_command, args=arguments, daemon=False)
        self._process.start()
        self.pid = self._process.pid

    def _path(self, name: str) -> Path:
        return Path(self._output.name) / name

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number: int) -> None:
        assert self.pid is not None
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed, after its end. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("merlin train", timeout or 0)
        found = [path.read_text() if path.exists() else "" for path in map(self._path, ("out", "err"))]
        self._output.cleanup()
        return found[0], found[1]


# ------------------------------------------------------------------ in the other processes


def _command(words: Sequence[str], env: dict[str, str], cwd: str, paths: Sequence[str]) -> None:
    gc.freeze()  # the collector must not touch what the server has loaded, since that would copy its memory
    for path, target in zip(paths, (1, 2), strict=True):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(cwd)
    take_environment(env)
    sys.argv = ["merlin", "train", *words]

    import torch

    from merlin.cli.main import command

    torch.set_num_threads(1)  # threads of torch do not survive a fork
    fork_trainers()
    command()
