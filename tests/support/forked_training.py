"""`merlin train` for tests, with torch loaded; its trainers are copies of it.

    process = ForkedTraining(config, "tournament.trainers=2", HOLD_AFTER=25)  # merlin train CONFIG …
    process = ForkedTorchrun(folder, config)  # torchrun --nproc-per-node 2 … merlin train CONFIG

Loading torch takes longer than most tests train. A test of how `merlin train` or its trainers start, and of what they
inherit, has to use `subprocess`.
"""

from __future__ import annotations

from pathlib import Path

from commands import SCIENCE, WarmCommand, training_environment, write_merlin


class ForkedTraining(WarmCommand):
    """A running command; `variables` are added to its environment."""

    def __init__(self, *words: object, **variables: object) -> None:
        self._begin("merlin", ["train", *map(str, words)], variables)

    def _begin(self, kind: str, argv: list[str], variables: dict[str, object]) -> None:
        env = training_environment(**variables)
        super().__init__(kind, argv, env=env, is_session=False, loaded=SCIENCE)


class ForkedTorchrun(ForkedTraining):
    """`torchrun` with two ranks of `merlin train …`; the program that it starts is written into a folder."""

    def __init__(self, folder: Path, *words: object) -> None:
        program = folder / "merlin"
        write_merlin(program, SCIENCE)
        options = ("--standalone", "--nproc-per-node", "2", "--no-python", str(program))
        self._begin("module", ["torch.distributed.run", *options, "train", *map(str, words)], {})
