"""The scripts of a step instance: its command with the tokens of one sample filled in.

The plan has filled in everything except sample tokens. The command is compiled once per instance into a format
string, so that filling it is cheap per task. Any `$(…)` that is not a sample token is left to the shell.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from operator import itemgetter

from msgspec import Struct

from merlin.base.ranges import stretches
from merlin.plan.plan import StepInstance
from merlin.spec.variables import value_variable
from merlin.workspace.directory import Workspace

_TOKEN = re.compile(r"\$\(([^()\s]+)\)")
_BLOCK = 1024  # samples read at once


class Script(Struct, frozen=True):
    """The script of one task, and the sample values in it."""

    task: int
    directory: str  # absolute
    text: str
    values: tuple[str, ...]  # the sample's columns that the script may contain; () if it contains none
    variables: tuple[tuple[str, str], ...] = ()  # of the environment: name, value of the sample


class ScriptTemplate:
    """The scripts of one command of a step instance."""

    def __init__(self, workspace: Workspace, instance: StepInstance, command: str) -> None:
        self._workspace = workspace
        self._instance = instance
        samples = workspace.plan.samples
        self._labels = samples.labels if samples is not None and instance.per_sample else ()
        self._root = str(workspace.instance_dir(instance))
        source = f"#!{instance.shell}\n\n{command}\n"
        known = self._known()
        names = [name for name in _TOKEN.findall(source) if name in known]
        self.uses_columns = any(n in self._labels or n == "MERLIN_SAMPLE_VECTOR" for n in names)
        named = ((value_variable(label), column) for column, label in enumerate(self._labels))
        self._variables = [(name, column) for name, column in named if name in source]
        self._format = self._compile(source)
        slots = [known[name] for name in names]
        # one slot gives just its text, not a tuple; a format accepts that, too
        self._pick = itemgetter(*slots) if slots else None

    def scripts(self, tasks: Sequence[int]) -> Iterator[Script]:
        """The scripts of the tasks, which are in order; contiguous ranges of them are filled together."""
        for lo, hi in stretches(tasks):
            yield from self._range(lo, hi)

    def _range(self, lo: int, hi: int) -> Iterator[Script]:
        format, pick, root, named = self._format, self._pick, self._root, self._variables
        same = [str(self._workspace.path / i) for i in self._instance.same_workspaces.values()]
        first = self._workspace.first_sample
        for at in range(lo, hi, _BLOCK):
            end = min(at + _BLOCK, hi)
            for task, path, row in zip(
                range(at, end), self._paths(at, end), self._rows(at, end), strict=True
            ):
                directory = f"{root}/{path}" if path else root
                variables = tuple([(name, row[at]) for name, at in named]) if named else ()
                if not pick:
                    yield Script(task, directory, format % (), (), variables)
                    continue
                others = [f"{base}/{path}" if path else base for base in same]
                slots = (str(first + task), path, " ".join(row), directory, *others, *row)
                values = row if self.uses_columns else ()
                yield Script(task, directory, format % pick(slots), values, variables)

    def _paths(self, lo: int, hi: int) -> Iterator[str]:
        return self._workspace.layout.iter_paths(lo, hi) if self._instance.per_sample else repeat("", hi - lo)

    def _rows(self, lo: int, hi: int) -> Iterator[tuple[str, ...]]:
        if not (self.uses_columns or self._variables):
            return repeat((), hi - lo)
        return iter(self._workspace.samples().text_rows(lo, hi))

    def _compile(self, source: str) -> str:
        """The source as a %-format with one %s per token that varies from task to task."""
        constants, known = self._constants(), self._known()
        text, *rest = _TOKEN.split(source)
        parts = [_escape(text)]
        for name, text in zip(rest[::2], rest[1::2], strict=True):
            if name in constants:
                parts.append(_escape(constants[name]()))
            else:
                parts.append("%s" if name in known else _escape(f"$({name})"))
            parts.append(_escape(text))
        return "".join(parts)

    def _known(self) -> dict[str, int]:
        """The names of the tokens that vary from task to task -> their slots."""
        fixed = ["MERLIN_SAMPLE_ID", "MERLIN_SAMPLE_PATH", "MERLIN_SAMPLE_VECTOR", "WORKSPACE"]
        if not self._instance.per_sample:
            return {"WORKSPACE": 3}
        same = [f"{step}.workspace" for step in self._instance.same_workspaces]
        return {name: slot for slot, name in enumerate([*fixed, *same, *self._labels])}

    def _constants(self) -> dict[str, Callable[[], str]]:
        """The tokens with the same value for every task. Values are computed when they are used: one is long."""
        samples = self._workspace.plan.samples
        labels = samples.labels if samples is not None else ()
        layout = self._workspace.layout
        return {
            "MERLIN_SAMPLE_NAMES": lambda: " ".join(labels),
            "MERLIN_PATHS_ALL": layout.paths_all,
            "MERLIN_GLOB_PATH": lambda: layout.glob,
        }


def _escape(text: str) -> str:
    return text.replace("%", "%%")
