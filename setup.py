"""Puts the studies of specs/ into the wheel, as merlin/specs; all else is in pyproject.toml."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithSpecs(build_py):
    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # there `merlin example` reads the folder itself
            target = Path(self.build_lib, "merlin", "specs")
            shutil.rmtree(target, ignore_errors=True)
            left_behind = shutil.ignore_patterns("__pycache__", "merlin_info")
            shutil.copytree("specs", target, ignore=left_behind)


setup(cmdclass={"build_py": WithSpecs})
