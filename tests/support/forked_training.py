"""`merlin train` for tests, with torch loaded; its trainers are copies of it.

    process = ForkedTraining(config, "tournament.trainers=2", HOLD_AFTER=25)  # merlin train CONFIG …
    process = ForkedTorchrun(folder, config)  # torchrun --nproc-per-node 2 … merlin train CONFIG

Loading torch takes longer than most tests train. A test of how `merlin train` or its trainers start, and of what they
inherit, has to use `subprocess`.
"""

from __future__ import annotations

import os
from pathlib import Path

from commands import SCIENCE, WarmProcess, training_environment, write_merlin


class ForkedTraining(WarmProcess):
    """A running command; `variables` are added to its environment."""

    def __init__(self, *words: object, **variables: object) -> None:
        self._begin("merlin", ["train", *map(str, words)], variables)

    def _begin(self, kind: str, argv: list[str], variables: dict[str, object]) -> None:
        self._outputs = os.memfd_create("out"), os.memfd_create("err")
        out, err = self._outputs
        env = training_environment(**variables)
        super().__init__(kind, argv, env=env, output=out, errors=err, loaded=SCIENCE)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed, after its end. Raises subprocess.TimeoutExpired."""
        self.wait(timeout)
        found = []
        for output in self._outputs:
            with open(output) as file:
                file.seek(0)
                found.append(file.read())
        return found[0], found[1]


class ForkedTorchrun(ForkedTraining):
    """`torchrun` with two ranks of `merlin train …`; the program that it starts is written into a folder."""

    def __init__(self, folder: Path, *words: object) -> None:
        program = folder / "merlin"
        write_merlin(program, SCIENCE)
        options = ("--standalone", "--nproc-per-node", "2", "--no-python", str(program))
        self._begin("module", ["torch.distributed.run", *options, "train", *map(str, words)], {})
