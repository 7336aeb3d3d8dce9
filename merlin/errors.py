"""Every error a user can meet.

::

    MerlinError                 exit code 1
    ├── UsageError              2   the command line contradicts itself
    ├── SpecError               2   the spec is wrong; carries every diagnostic with file:line:col
    │   └── SamplesError        2   the samples file is missing, ragged, empty, non-finite …
    ├── ConfigError             2   app.yaml, a MERLIN_… variable, the key file or a training configuration is
    │                               wrong; every finding with its place
    ├── WorkspaceError          1   not a workspace, locked by a live run, not writable, plan unreadable
    ├── LedgerError             1   the ledger cannot be read or written
    ├── ExecutionError          1   the run itself broke (not a task: tasks fail, they do not raise)
    │   ├── StudyGoneError          1   Redis does not hold the study: it is over, or was lost
    │   ├── RedisFullError          1   Redis is out of memory; nothing was changed
    │   ├── RedisUnreachableError   1   no connection to Redis; repeat what was asked
    │   ├── SchedulerUnreachableError  1   the batch scheduler gave no answer, or a garbled one; repeat what was asked
    │   ├── SchedulerRefusedError   1   the batch scheduler answered, and refused; it would do so again
    │   ├── OwnershipLostError      1   another process owns the study now; nothing more may be decided here
    │   └── LeaseLostError          1   the chunk was given to another worker; nothing of it may be committed
    ├── ForgedMessageError      1   a message was not sealed with this user's key, or was altered
    ├── NotifyError             1   somebody was to be told of an event, and could not be reached
    ├── LoaderError             1   a training loader cannot go on: a worker died, no memory, a state of other data
    ├── TrainingError           1   a training run cannot begin or go on
    │   └── CheckpointError         1   a checkpoint cannot be read or written
    ├── ShardError              1   damage in a data set
    │   └── NotADataSetError    2   the path holds no manifest, or several
    └── MissingExtraError       2   an optional dependency is not installed; says which extra

Foreign exceptions are translated at the fence where the foreign library is called, with ``raise … from``.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal


def command_line(*words: object) -> str:
    """A command of ours as it can be pasted into a shell; for messages that say what to do."""
    return shlex.join(["merlin", *map(str, words)])


class MerlinError(Exception):
    """Base of all errors; the message says what happened, where, and what to do."""

    exit_code: ClassVar[int] = 1


class UsageError(MerlinError):
    exit_code = 2


@dataclass(frozen=True, slots=True)  # no Struct: the shell's completion loads this module, and not msgspec
class Diagnostic:
    """One finding about a spec, with its place; lines and columns count from 1, 0 means unknown."""

    file: str
    line: int
    col: int
    message: str
    text: str = ""  # the offending text as written
    hint: str = ""  # what is allowed, or "did you mean …?"
    severity: Literal["error", "warning"] = "error"
    code: str = ""  # stable short name, e.g. "unknown-key"

    def but(self, **changes: Any) -> Diagnostic:
        """The finding with some fields changed."""
        return replace(self, **changes)

    def render(self) -> str:
        place = f"{self.file}:{self.line}:{self.col}" if self.line else self.file
        hint = f"\n    {self.hint}" if self.hint else ""
        return f"{place}: {self.severity}: {self.message}{hint}"


class SpecError(MerlinError):
    """A spec that cannot run; `diagnostics` holds every finding, errors first."""

    exit_code = 2

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        self.diagnostics = diagnostics
        super().__init__("\n".join(d.render() for d in diagnostics))


class SamplesError(SpecError):
    """A samples file that cannot be used."""


class ConfigError(MerlinError):
    """A configuration that cannot be used; `diagnostics` holds every finding that has a place."""

    exit_code = 2

    def __init__(self, found: str | list[Diagnostic]) -> None:
        self.diagnostics = [] if isinstance(found, str) else found
        super().__init__(found if isinstance(found, str) else "\n".join(d.render() for d in found))


class WorkspaceError(MerlinError):
    pass


class LedgerError(MerlinError):
    pass


class ExecutionError(MerlinError):
    pass


class NotHereError(ExecutionError):
    """This machine lacks what tasks need, so the study has not begun to run."""


class StudyGoneError(ExecutionError):
    pass


class RedisFullError(ExecutionError):
    pass


class RedisUnreachableError(ExecutionError):
    pass


class SchedulerUnreachableError(ExecutionError):
    pass


class SchedulerRefusedError(ExecutionError):
    pass


class OwnershipLostError(ExecutionError):
    pass


class LeaseLostError(ExecutionError):
    pass


class ForgedMessageError(MerlinError):
    """A message that must not be acted on; the text names the reason and never the content."""


class NotifyError(MerlinError):
    """A notification that was not delivered; the text holds no secret."""


class LoaderError(MerlinError):
    pass


class TrainingError(MerlinError):
    pass


class CheckpointError(TrainingError):
    pass


class ShardError(MerlinError):
    pass


class NotADataSetError(ShardError):
    exit_code = 2


class MissingExtraError(MerlinError):
    """An optional dependency is missing."""

    exit_code = 2

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs {package}; install it with: pip install 'merlin-ensembles[{extra}]'"
        )
