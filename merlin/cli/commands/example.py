"""`merlin example`: the studies of `specs/` in the repository, of `merlin/specs/` where it is installed."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

import merlin
from merlin.cli.options import json_option
from merlin.cli.output import print_json, print_table
from merlin.errors import UsageError, command_line

_LEFT_BEHIND = ("__pycache__", "merlin_info")


@click.command()
@click.argument("name", metavar="list|NAME")
@click.option(
    "-p", "--path", "to", type=click.Path(path_type=Path), metavar="DIR",
    help="Where to copy it [default: here].",
)  # fmt: skip
@json_option
def example(name: str, to: Path | None, as_json: bool) -> None:
    """List the studies that come with Merlin, or copy one of them, with all its files.

    NAME alone is copied as NAME.yaml; one that needs more files, as a directory.
    """
    from merlin.spec.load import load_spec

    specs = _specs()
    if name == "list":
        found = {stem: load_spec(path).document.description.description for stem, path in specs.items()}
        if as_json:
            print_json([{"name": stem, "description": text.strip()} for stem, text in found.items()])
        else:
            print_table(("name", "description"), [(stem, text.strip()) for stem, text in found.items()])
        return
    if name not in specs:
        raise UsageError(f"example {name!r} not found; there are: {', '.join(specs)}")
    spec = _copy(specs[name], to)
    shown = spec.relative_to(Path.cwd()) if spec.is_relative_to(Path.cwd()) else spec
    if as_json:
        print_json({"name": name, "spec": spec})
    else:
        print(f"{shown} is written; run it with: {command_line('run', shown)}")


def _specs() -> dict[str, Path]:
    """The specs by name, which is that of the file. Raises UsageError if this installation has none."""
    package = Path(merlin.__file__).resolve().parent
    for folder in (package / "specs", package.parent / "specs"):
        if (folder / "hello" / "hello.yaml").is_file():
            paths = sorted(folder.glob("*/*.yaml"), key=lambda path: path.stem)
            return {path.stem: path for path in paths}
    raise UsageError(f"this installation in {package} came without the example studies")


def _copy(spec: Path, to: Path | None) -> Path:
    """Copy an example with all its files; returns the spec.

    A spec alone becomes `to`/NAME.yaml (`to` is by default the current directory), a folder becomes `to` (by
    default one of its own name). Raises UsageError for what would be written over.
    """
    names = {entry.name for entry in spec.parent.iterdir()}
    if names - set(_LEFT_BEHIND) == {spec.name}:
        target = (to or Path.cwd()) / spec.name
        if not target.parent.is_dir():
            _refuse_if_there(target.parent)
        _refuse_if_there(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spec, target)
        return target
    folder = to or Path.cwd() / spec.parent.name
    _refuse_if_there(folder)
    shutil.copytree(spec.parent, folder, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
    return folder / spec.name


def _refuse_if_there(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path} exists already; name another place with --path DIR")
