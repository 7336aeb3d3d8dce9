"""What a study needs from outside (env.dependencies): paths that must exist, repositories that are cloned."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.document.scalars import Problem
from merlin.base.document.tokens import substitute
from merlin.base.files import file_error, making_directory, remove_leftovers
from merlin.errors import Diagnostic, SpecError

_ABANDONED_S = 86_400.0  # a clone that has not got its name after so long will not get it

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.spec.model import GitDependency


def missing_paths(spec: Spec, variables: Mapping[str, str]) -> list[Diagnostic]:
    """A finding for every path that does not exist."""
    found = []
    for index, path in enumerate(spec.document.env.dependencies.paths):
        if not os.path.exists(variables[path.name]):  # noqa: PTH110 - False for a name that is too long
            message = f"the path {variables[path.name]} of {path.name} does not exist"
            is_relative = not path.path.startswith(("/", "$"))
            hint = "a relative path counts from the current directory" if is_relative else ""
            where = ("env", "dependencies", "paths", index)
            found.append(spec.finding(where, message, "missing-dependency", hint))
    return found


def acquire_dependencies(spec: Spec, variables: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Check the paths, clone the repositories; a checkout that an earlier run made is used again, as it is.

    Raises:
        SpecError: a path does not exist, a repository cannot be cloned, or something else is in its place.
    """
    if findings := missing_paths(spec, variables):
        raise SpecError(findings)
    for index, checkout in enumerate(spec.document.env.dependencies.git):
        url, target = substitute(checkout.url, variables), Path(variables[checkout.name])
        try:
            if not os.path.lexists(target):
                say(f"cloning {url} into {target}")
                if _clone(checkout, url, target):
                    continue
            if difference := _difference(checkout, url, target):
                raise Problem(f"{target} exists already, and {difference}", "remove it, or name another path")
            say(f"using {target}, a clone of {url}")
        except OSError as error:
            raise _error(spec, index, Problem(f"{target} cannot be used: {error.strerror}")) from error
        except Problem as problem:
            raise _error(spec, index, problem) from problem


def _error(spec: Spec, index: int, problem: Problem) -> SpecError:
    where = ("env", "dependencies", "git", index)
    return SpecError([spec.finding(where, str(problem), "git-dependency", problem.hint)])


def _clone(checkout: GitDependency, url: str, target: Path) -> bool:
    """Clone beside the target, which then appears complete; False if another run has made it meanwhile."""
    try:
        remove_leftovers(target.parent, target.name, older_than_s=_ABANDONED_S)
        # what a crash of the machine damages can be cloned again
        with making_directory(target, flush="nothing") as clone:
            _fill(clone, checkout, url, target)
    except OSError as error:
        if isinstance(error, FileExistsError) and target.exists():
            return False
        raise Problem(file_error(error)) from error
    return True


def _fill(clone: Path, checkout: GitDependency, url: str, target: Path) -> None:
    """Clone into an empty directory, which is called `target` in messages."""
    commands = [["git", "clone", "--quiet", "--", url, str(clone)]]
    if version := checkout.hash or checkout.tag:
        commands.append(["git", "-C", str(clone), "checkout", "--quiet", "--detach", version])
    for command in commands:
        done = _run(command)
        if done.returncode != 0:
            said = f"{' '.join(command)} failed with exit code {done.returncode}: {done.stderr.strip()}"
            raise Problem(said.replace(str(clone), str(target)))


def _difference(checkout: GitDependency, url: str, target: Path) -> str:
    """How a directory differs from the wanted clone; "" if it does not."""
    if not (target / ".git").exists():
        return "is not a clone"
    origin = _answer(target, "config", "--get", "remote.origin.url")
    if origin != url and not _is_same_path(origin, url):
        return f"is a clone of {origin or 'nothing'}, not of {url}"
    here = _answer(target, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    if not here:
        return "holds no commit: an earlier clone was cut short"
    version = checkout.hash or checkout.tag
    if version and here != _answer(target, "rev-parse", "--verify", "--quiet", f"{version}^{{commit}}"):
        return f"is at commit {here[:12]}, not at {version}"
    return ""


def _is_same_path(origin: str, url: str) -> bool:
    """Return whether both are the same local path: git makes the path of a repository absolute."""
    return bool(origin) and Path(url).exists() and Path(origin).resolve() == Path(url).resolve()


def _answer(target: Path, *words: str) -> str:
    """What git prints about a clone; "" if it fails."""
    done = _run(["git", "-C", str(target), *words])
    return done.stdout.strip() if done.returncode == 0 else ""


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL, check=False
        )
    except OSError as error:
        raise Problem(f"git cannot be run: {error.strerror}") from error
