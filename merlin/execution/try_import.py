"""Try to import the functions of a study, as workers would do it, in a process of their own.

``python -P -B -m merlin.execution.try_import FD SPEC_ROOT NAME …`` writes one line of JSON per name to the file
descriptor FD: the name, the problem, and a hint. Both are "" if the import works.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.errors import Diagnostic, SpecError
from merlin.execution.processes import kill_group_at_once

if TYPE_CHECKING:
    from merlin.spec.load import Spec

LIMIT_S = 20.0  # for all imports of a study together; torch alone takes seconds
QUICK_S = 5.0  # before a run, which reports slower problems itself
MAX_CHARS = 500  # of a cause


class ImportProblem(Struct, frozen=True):
    """Why a function cannot be used."""

    message: str
    hint: str = ""
    is_slow: bool = False  # the import took too long, so it was not checked


def import_findings(spec: Spec, limit_s: float = LIMIT_S) -> list[Diagnostic]:
    """The problems with the functions of a spec: errors, and a warning if an import takes too long."""
    wanted = {
        index: (step.name, step.run.function)
        for index, step in enumerate(spec.document.study)
        if step.run.function
    }
    spec_root = str(spec.path.absolute().parent)
    problems = try_imports([name for _, name in wanted.values()], spec_root, limit_s)
    found = []
    for index, (step, name) in wanted.items():
        if (problem := problems.get(name)) is not None:
            found.append(
                spec.finding(
                    ("study", index, "run", "function"),
                    f"step {step!r}: {problem.message}",
                    "slow-import" if problem.is_slow else "import",
                    problem.hint,
                    text=name,
                    severity="warning" if problem.is_slow else "error",
                )
            )
    return found


def import_warnings(spec: Spec, *, elsewhere: bool) -> list[Diagnostic]:
    """Warnings about functions that cannot be imported here, for a spec that will run `elsewhere`.

    Raises SpecError if the spec will run here.
    """
    found = [finding for finding in import_findings(spec, QUICK_S) if finding.severity == "error"]
    if found and not elsewhere:
        raise SpecError(found)
    return [finding.but(severity="warning") for finding in found]


def try_imports(names: Sequence[str], spec_root: str, limit_s: float = LIMIT_S) -> dict[str, ImportProblem]:
    """The names that a worker could not import, each with the reason."""
    names = list(dict.fromkeys(names))
    found: dict[str, ImportProblem] = {}
    end = time.monotonic() + limit_s
    while names:
        answers, code = _run_imports(names, spec_root, max(0.0, end - time.monotonic()))
        found |= {name: problem for name, problem in answers.items() if problem.message}
        names = [name for name in names if name not in answers]
        if not names:
            break
        name, *names = names
        if code is None:
            slow = f"importing {name} takes longer than {limit_s:g} s, so it was not checked"
            found[name] = ImportProblem(slow, is_slow=True)
            break
        # the module ended the process; another process tries the next ones
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        found[name] = ImportProblem(f"importing {name} ends the process ({how})")
    return found


def _run_imports(
    names: Sequence[str], spec_root: str, limit_s: float
) -> tuple[dict[str, ImportProblem], int | None]:
    """The answers of a process, in the order of the names, and its exit code (None if it took too long)."""
    with tempfile.TemporaryFile() as answers:  # a pipe could fill up
        process = subprocess.Popen(
            [sys.executable, "-P", "-B", "-m", __name__, str(answers.fileno()), spec_root, *names],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(answers.fileno(),),
            start_new_session=True,
        )
        code: int | None = None
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(limit_s)
        kill_group_at_once(process.pid)  # with all that the imports started
        process.wait()
        answers.seek(0)
        lines = answers.read().splitlines()
    return dict(_parsed_answers(lines)), code


def _parsed_answers(lines: Sequence[bytes]) -> Iterator[tuple[str, ImportProblem]]:
    """Parse the answers; skip other text that a module may have written."""
    for line in lines:
        with suppress(ValueError, TypeError):
            name, message, hint = json.loads(line)
            yield name, ImportProblem(message, hint)


def _main(argv: Sequence[str]) -> None:
    fd, spec_root, *names = argv
    os.set_inheritable(int(fd), False)
    pid = os.getpid()
    for name in names:
        answer = (name, *_try_one(name, spec_root))
        if os.getpid() != pid:
            os._exit(0)  # a copy of the process, made by the module
        os.write(int(fd), ("\n" + json.dumps(answer) + "\n").encode())
    os._exit(0)  # threads that a module started do not matter


def _try_one(name: str, spec_root: str) -> tuple[str, str]:
    """The problem with a function, and a hint; both are "" if its import works."""
    from merlin.execution.functions import cause_of, import_function

    try:
        import_function(name, spec_root)
    except BaseException as error:  # noqa: BLE001 - the module is the user's
        cause = cause_of(error)[:MAX_CHARS]
        return f"cannot import {name}: {cause}{_failure_place(error)}", _hint(name, spec_root, error)
    return "", ""


def _failure_place(error: BaseException) -> str:
    """The place in the user's code where the import failed."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    own = [f for f in frames if f.name != "import_function" and "importlib" not in f.filename]
    last = own[-1] if own and own[-1].filename != __file__ else None
    return f" ({last.filename}:{last.lineno})" if last else ""


def _hint(name: str, spec_root: str, error: BaseException) -> str:
    from merlin.base.document.findings import did_you_mean

    module, _, attribute = name.partition(":")
    if isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}."):
        return f"modules are looked for in {spec_root}, on PYTHONPATH, and among the installed packages"
    if isinstance(error, AttributeError) and module in sys.modules:
        return did_you_mean(attribute, vars(sys.modules[module]))
    return ""


if __name__ == "__main__":
    _main(sys.argv[1:])
