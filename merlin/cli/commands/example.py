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
    spec, is_new = _copy(specs[name], to)
    shown = spec.relative_to(Path.cwd()) if spec.is_relative_to(Path.cwd()) else spec
    if as_json:
        print_json({"name": name, "spec": spec, "made": is_new})
    else:
        what = "is written" if is_new else "is there already"
        print(f"{shown} {what}; run it with: {command_line('run', shown)}")


def _specs() -> dict[str, Path]:
    """The specs by name, which is that of the file. Raises UsageError if this installation has none."""
    package = Path(merlin.__file__).resolve().parent
    for folder in (package / "specs", package.parent / "specs"):
        if (folder / "hello" / "hello.yaml").is_file():
            paths = sorted(folder.glob("*/*.yaml"), key=lambda path: path.stem)
            return {path.stem: path for path in paths}
    raise UsageError(f"this installation in {package} came without the example studies")


def _copy(spec: Path, to: Path | None) -> tuple[Path, bool]:
    """Copy an example with all its files; returns the spec, and False if it was there already.

    A spec alone becomes `to`/NAME.yaml (`to` is by default the current directory), a folder becomes `to` (by
    default one of its own name). Raises UsageError for what would be written over.
    """
    names = {entry.name for entry in spec.parent.iterdir()} - set(_LEFT_BEHIND)
    is_alone = names == {spec.name}
    folder = to or (Path.cwd() if is_alone else Path.cwd() / spec.parent.name)
    target = folder / spec.name
    is_there = target.is_file() and all((folder / name).exists() for name in names)
    if is_there and target.read_bytes() == spec.read_bytes():
        return target, False
    if is_alone:
        if not folder.is_dir():
            _refuse_if_there(folder)
        _refuse_if_there(target)
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(spec, target)
    else:
        _refuse_if_there(folder)
        shutil.copytree(spec.parent, folder, ignore=shutil.ignore_patterns(*_LEFT_BEHIND))
    return target, True


def _refuse_if_there(path: Path) -> None:
    if path.exists():
        raise UsageError(f"{path} exists already; name another place with --path DIR")
