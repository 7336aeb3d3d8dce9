"""Where a study comes from: three copies of its spec, and who began it, how, where, and with what code."""

from __future__ import annotations

import json
import os
import platform
import pwd
import shlex
import socket
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field, structs

from merlin.base.commands import run_command
from merlin.base.files import write_text
from merlin.base.records import FileFormat, as_kind, indented, to_plain
from merlin.spec.variables import provenance_stem

if TYPE_CHECKING:
    from merlin.spec.load import Spec

NAME = "provenance.json"
FORMAT = FileFormat("merlin-provenance", 1)
_PACKAGES = ("numpy", "h5py", "hdf5plugin")  # besides Python, what the data depend on
_STUDY_OPTIONS = ("--vars", "--samplesfile", "--pgen", "--pargs")  # the first takes several words
_GIT_LIMIT_S = 5.0
_PACKAGE_ROOT = Path(__file__).resolve().parents[2]  # of this program's own repository, if it runs from one


class Commit(Struct, frozen=True, kw_only=True):
    """The state of a git repository; `id` is "" where there is none, or git cannot be asked."""

    id: str = ""
    is_changed: bool = False  # files that it knows differ from the commit

    def __str__(self) -> str:
        return f"{self.id}, with changes that are not committed" if self.is_changed else self.id


class Provenance(Struct, frozen=True, kw_only=True):
    """How a study was begun; a text is empty where that is not known."""

    command: str = ""
    directory: str = ""  # in which the command was given
    user: str = ""
    host: str = ""
    system: str = ""
    python: str = ""
    packages: dict[str, str] = field(default_factory=dict)  # versions
    spec_commit: Commit = Commit()  # of the repository that the spec lies in
    code_commit: Commit = Commit()  # of Merlin's own repository, if it was not installed from a package
    is_dry: bool = False  # only its scripts were to be written


def write_provenance(
    spec: Spec,
    info: Path,
    variables: Mapping[str, str],
    parameters: Mapping[str, Any] | None = None,
    *,
    is_dry: bool = False,
) -> None:
    """Write three copies of the spec, and how the study was begun. Raises OSError.

    The copies are: as it is; with defaults; with variables, and `parameters` of a generator, filled in.
    """
    stem = provenance_stem(spec.path)
    found = structs.replace(find_provenance(Path(spec.path).parent), is_dry=is_dry)
    about = {**FORMAT.head(), **to_plain(found)}
    write_text(info / f"{stem}.orig.yaml", spec.text)
    write_text(info / f"{stem}.partial.yaml", f"# as it ran in {info.parent}\n{spec.partial_yaml()}")
    write_text(info / f"{stem}.expanded.yaml", spec.expanded_yaml(variables, parameters))
    write_text(info / NAME, indented(about, ensure_ascii=False) + "\n")


def find_provenance(folder: Path) -> Provenance:
    """The provenance of a study that this process begins now, with a spec in `folder`."""
    is_repository = (_PACKAGE_ROOT / ".git").exists()
    return Provenance(
        command=_command(),
        directory=str(Path.cwd()),
        user=_user(),
        host=socket.gethostname(),
        system=platform.platform(),
        python=platform.python_version(),
        packages={name: version for name in _PACKAGES if (version := package_version(name))},
        spec_commit=_commit(folder),
        code_commit=_commit(_PACKAGE_ROOT) if is_repository else Commit(),
    )


def read_provenance(info: Path) -> Provenance:
    """The provenance of the study with this merlin_info; empty for a file of another version or a damaged one."""
    try:
        data = json.loads((info / NAME).read_text(encoding="utf-8", errors="surrogateescape"))
        return as_kind(data, Provenance) if FORMAT.is_of(data) else Provenance()
    except (OSError, ValueError):
        return Provenance()


def has_given_samples(info: Path) -> bool:
    """Whether the study with this merlin_info was begun with other samples than its spec names.

    By --samplesfile or merlin.run: their file stands in the copy with defaults, but not in the spec as it was written.
    """
    from merlin.base.document.findings import Findings, SourceText  # with PyYAML
    from merlin.base.document.tree import parse

    blocks = []
    for kind in ("orig", "partial"):
        path = next(info.glob(f"*.{kind}.yaml"), None)
        try:
            text = "" if path is None else path.read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return False
        tree = parse(SourceText(str(path), text), Findings(str(path)))
        if tree is None:
            return False
        blocks.append(tree.get("merlin", "samples"))
    written, used = blocks
    return not used.get("generate").mapping and written.get("file").text != used.get("file").text


def study_options_of(command: str) -> list[str]:
    """The options in a command line that another command about the same study has to repeat."""
    found: list[str] = []
    option = ""
    for word in shlex.split(command):
        if word.startswith("-"):
            option, has_value, _ = word.partition("=")
            if option in _STUDY_OPTIONS:
                found.append(word)
            option = "" if has_value else option
        elif option == "--vars" and "=" in word:
            found.append(word)
        elif option in _STUDY_OPTIONS:
            found += [word] if option != "--vars" else []
            option = ""
    return found


def _command() -> str:
    """The command line of this process, as it can be typed again."""
    name = Path(sys.argv[0]) if sys.argv else Path()
    ours = ("merlin", "__main__.py"), ("merlin", "cli", "__main__.py")  # of python -m
    if name.name == "merlin" or name.parts[-2:] in ours or name.parts[-3:] in ours:
        return shlex.join(["merlin", *sys.argv[1:]])
    return shlex.join(sys.orig_argv)


def _user() -> str:
    number = os.geteuid()
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # in a container that does not know its user
        return str(number)


def package_version(package: str) -> str:
    """The version of an installed package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _commit(folder: Path) -> Commit:
    """What git says of a folder; nothing of the repository's own configuration is run."""
    own = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    asked = ("status", "--porcelain=v2", "--branch", "--untracked-files=no", "--ignore-submodules", "--", ".")
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        answer = run_command(
            ["git", "-C", str(folder), *own, *asked], limit_s=_GIT_LIMIT_S, environment=environment
        )
    except OSError:
        return Commit()
    lines = answer.output.splitlines() if answer.code == 0 else []
    heads = [line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid ")]
    if not heads or not all(character in "0123456789abcdef" for character in heads[0]):
        return Commit()
    return Commit(id=heads[0], is_changed=any(not line.startswith("#") for line in lines))
