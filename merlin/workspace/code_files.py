"""The code of each step: files whose change would change the study, and their digests for the plan."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.base.document.scalars import Problem
from merlin.base.document.tokens import find_tokens, substitute
from merlin.base.files import absolute_path
from merlin.errors import Diagnostic, SpecError
from merlin.plan.instance_names import NO_COMBINATION
from merlin.plan.parameters import Combination, filled
from merlin.plan.plan import Plan, StepInstance
from merlin.workspace.directory import INFO_DIR
from merlin.workspace.file_patterns import named_files
from merlin.workspace.module_source import module_file

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.spec.model import Step

# of the files that the command of a step names
MAX_FILES = 100
MAX_BYTES = 64 << 20  # of one of them
MAX_LINES = 2_000  # of all its instances' commands, that are read
MAX_LINE = 10_000  # characters; what is longer holds data
_WORD_ENDS = re.compile(r"[\s'\"();|&<>]+")
_OUTPUT = re.compile(r"[();<>|&]*>[();<>|&]*")  # before the name of a file that is written


def with_code(spec: Spec, plan: Plan, variables: Mapping[str, str], combos: Sequence[Combination]) -> Plan:
    """The plan with the digests of its steps' code as it is now; a file that cannot be read has none."""
    code = _Code(spec, variables, filled(combos, variables, variables))
    steps = plan.by_step()
    return replace(
        plan,
        code={
            step.name: code.digests(step, steps[step.name])
            for step in spec.document.study
            if step.name in steps
        },
    )


def file_findings(
    spec: Spec, variables: Mapping[str, str], combos: Sequence[Combination]
) -> list[Diagnostic]:
    """Errors about entries of `files` that name no file, and warnings about files that cannot be read."""
    code, found = _Code(spec, variables, filled(combos, variables, variables)), []
    for index, step in enumerate(spec.document.study):
        whose = f"files of step {step.name!r}"
        for number, text in code.entries(step):
            where = ("study", index, "run", "files", number)
            try:
                files = code.files(text)
            except Problem as problem:
                message = f"{whose}: {text!r} {problem}"
                found.append(spec.finding(where, message, "files", problem.hint, text=text))
                continue
            for name, trouble in code.unreadable(files):
                message = f"{whose}: {name!r} cannot be read ({trouble}), so its changes are not noticed"
                found.append(spec.finding(where, message, "files", text=text, severity="warning"))
    return found


def require_files(spec: Spec, variables: Mapping[str, str], combos: Sequence[Combination]) -> None:
    """Raises SpecError if an entry of `files` names no file."""
    if errors := [each for each in file_findings(spec, variables, combos) if each.severity == "error"]:
        raise SpecError(errors)


class _Code(Struct):
    """The files of a spec's steps, each read once."""

    spec: Spec
    variables: Mapping[str, str]
    combos: Sequence[Combination]
    _digests: dict[Path, str | None] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        return Path(self.variables["SPECROOT"])

    def name(self, file: Path) -> str:
        """The name of a file: relative to the spec's directory if it is below that, so that the study may be moved."""
        return str(file.relative_to(self.root) if file.is_relative_to(self.root) else file)

    def digests(self, step: Step, instances: Sequence[StepInstance]) -> dict[str, str]:
        """SHA-256 by the name of the file."""
        files = {*self._declared(step), *self._modules(instances), *self._named_by_commands(instances)}
        digests = {self.name(file): self._digest(file) for file in files}
        return {name: digest for name, digest in sorted(digests.items()) if digest is not None}

    def _digest(self, file: Path) -> str | None:
        """The SHA-256 of a file; None if it cannot be read."""
        if file not in self._digests:
            self._digests[file] = None
            with suppress(OSError), file.open("rb") as opened:
                self._digests[file] = hashlib.file_digest(opened, "sha256").hexdigest()
        return self._digests[file]

    # ------------------------------------------------------------------ files:

    def entries(self, step: Step) -> Iterator[tuple[int, str]]:
        """The entries of `files` with all parameters' values filled in, each with its number."""
        for number, entry in enumerate(step.run.files):
            texts = {
                substitute(entry, {**self.variables, **combo.tokens()}): None
                for combo in (self.combos if "$(" in entry else ()) or (NO_COMBINATION,)
            }
            yield from ((number, text) for text in texts)

    def files(self, text: str) -> list[Path]:
        """The files that an entry names. Raises Problem if there are none."""
        if tokens := find_tokens(text):
            raise Problem(f"has $({tokens[0].name}) in it, which has no value before the study begins")
        path = absolute_path(self.root / text)
        for checkout in self.spec.document.env.dependencies.git:
            clone = Path(self.variables[checkout.name])
            if path.is_relative_to(clone) and not clone.exists():
                return []  # the file may be made later
        return named_files(path)

    def unreadable(self, files: Sequence[Path]) -> Iterator[tuple[str, str]]:
        """The names of files that cannot be read, each with the reason."""
        for file in files:
            try:
                file.open("rb").close()
            except OSError as error:
                yield self.name(file), error.strerror or str(error)

    def _declared(self, step: Step) -> Iterator[Path]:
        for _, text in self.entries(step):
            try:
                yield from self.files(text)
            except Problem:
                continue  # see file_findings

    # ------------------------------------------------------------------ function:, cmd:

    def _modules(self, instances: Sequence[StepInstance]) -> Iterator[Path]:
        for name in {instance.function for instance in instances if instance.function}:
            if file := module_file(name.partition(":")[0], str(self.root)):
                yield file

    def _named_by_commands(self, instances: Sequence[StepInstance]) -> Iterator[Path]:
        """Files below the spec's directory whose names are words of the commands."""
        words = _words_of(instances)
        files = dict.fromkeys(Path(os.path.normpath(self.root / word)) for word in words)
        below = (file for file in files if file.is_relative_to(self.root))
        return islice((file for file in below if _is_script(file) and not self._is_of_study(file)), MAX_FILES)

    def _is_of_study(self, file: Path) -> bool:
        """Is it in a workspace, of this study or of another one?"""
        folders = [folder for folder in file.parents if self.root in folder.parents]
        return any((folder / INFO_DIR).is_dir() for folder in folders)


def _words_of(instances: Sequence[StepInstance]) -> list[str]:
    """Each word once, in the order of the commands."""
    lines: dict[str, None] = {}
    for instance in instances:
        for text in (instance.command, instance.restart or ""):
            lines |= dict.fromkeys(text.replace("\\\n", " ").splitlines())
        if len(lines) > MAX_LINES:
            break
    short = [line for line in list(lines)[:MAX_LINES] if len(line) <= MAX_LINE]
    return list(dict.fromkeys(word for line in short for word in script_words(line)))


def script_words(line: str) -> Iterator[str]:
    """The words of a line of a shell's script that may be names of files it reads: ``--deck=a.txt`` is two words."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    before = ""
    try:
        for word in lexer:
            if word.startswith("#"):
                return
            if not _OUTPUT.fullmatch(before):
                yield word
                if value := word.partition("=")[2]:
                    yield value
            before = word
    except ValueError:  # quotes that end on another line
        yield from _WORD_ENDS.split(line)


def _is_script(file: Path) -> bool:
    try:
        found = file.stat()
    except (OSError, ValueError):  # ValueError: a zero byte
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size <= MAX_BYTES
