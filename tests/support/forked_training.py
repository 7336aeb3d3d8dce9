"""`merlin train` for tests, with torch loaded; its trainers are copies of it.

    process = ForkedTraining(config, "tournament.trainers=2", HOLD_AFTER=25)  # merlin train CONFIG …

Loading torch takes longer than most tests train. A test of how `merlin train` or its trainers start, and of what they
inherit, has to use `subprocess`.
"""

from __future__ import annotations

import os

from commands import SCIENCE, SUPPORT, WarmProcess, before_ours


class ForkedTraining(WarmProcess):
    """A running command; `variables` are added to its environment."""

    def __init__(self, *words: object, **variables: object) -> None:
        self._outputs = os.memfd_create("out"), os.memfd_create("err")
        env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
        env |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": before_ours(SUPPORT)}
        env |= {name: str(value) for name, value in variables.items()}
        out, err = self._outputs
        argv = ["train", *map(str, words)]
        super().__init__("merlin", argv, env=env, output=out, errors=err, loaded=SCIENCE)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed, after its end. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        found = []
        for output in self._outputs:
            with open(output) as file:
                file.seek(0)
                found.append(file.read())
        return found[0], found[1]
