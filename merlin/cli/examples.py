"""The studies that come with Merlin: `specs/` of the repository, `merlin/specs/` where it is installed."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from merlin.errors import UsageError

_LEFT_BEHIND = ("__pycache__", "merlin_info")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One spec; its folder may hold more, and the files that they need."""

    name: str  # of the file, without .yaml
    spec: Path
    description: str

    @property
    def is_one_file(self) -> bool:
        """Whether the folder has nothing but the spec; then it is copied without a folder."""
        names = {entry.name for entry in self.spec.parent.iterdir()}
        return names - set(_LEFT_BEHIND) == {self.spec.name}


def examples_dir() -> Path:
    """Where the studies lie. Raises UsageError if this installation has none."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "specs", package.parent / "specs"):
        if (folder / "hello" / "hello.yaml").is_file():
            return folder
    raise UsageError(f"this installation in {package} came without the example studies")


def all_examples() -> list[Example]:
    """The studies, by name."""
    from merlin.spec.load import load_spec

    return [
        Example(
            name=path.stem, spec=path, description=load_spec(path).document.description.description.strip()
        )
        for path in sorted(examples_dir().glob("*/*.yaml"), key=lambda path: path.stem)
    ]


def copy_example(name: str, to: Path | None) -> Path:
    """Copy an example with all its files; returns the spec.

    A spec alone becomes `to`/NAME.yaml (`to` is by default the current directory), a folder becomes `to` (by
    default one of its own name). Raises UsageError for a name that does not exist, and for what would be
    written over.
    """
    found = {example.name: example for example in all_examples()}
    if name not in found:
        raise UsageError(f"example {name!r} not found; there are: {', '.join(found)}")
    example = found[name]
    if example.is_one_file:
        target = (to or Path.cwd()) / example.spec.name
        if not target.parent.is_dir():
            _refuse_if_there(target.parent)
        _refuse_if_there(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(example.spec, target)
        return target
    folder = to or Path.cwd() / example.spec.parent.name
    _refuse_if_there(folder)
    shutil.copytree(example.spec.parent, folder, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
    return folder / example.spec.name


def _refuse_if_there(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path} exists already; name another place with --path DIR")
