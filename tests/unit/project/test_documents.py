"""What the documents say about the project is true."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "specs").rglob("*.md")),
]


def test_the_architecture_starts_with_six_files_that_exist() -> None:
    text = (ROOT / "docs/architecture.md").read_text()
    first = re.findall(r"^\d\. \[`([^`]+)`\]", text.split("\n## ")[0], re.MULTILINE)
    assert len(first) == 6
    assert all((ROOT / name).is_file() for name in first), [n for n in first if not (ROOT / n).is_file()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_inside_the_project_lead_somewhere(document: Path) -> None:
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)", text):
        if not re.match(r"[a-z]+:", target):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_every_key_of_a_spec_is_in_the_reference() -> None:
    from pydantic import BaseModel

    from merlin.spec import data_set_blocks, model, run_block

    text = (ROOT / "docs/spec-reference.md").read_text()
    found = [value for module in (model, run_block, data_set_blocks) for value in vars(module).values()]
    blocks = [v for v in found if isinstance(v, type) and issubclass(v, BaseModel)]
    keys = {field.alias or name for block in blocks for name, field in block.model_fields.items()}
    assert {key for key in keys if f"`{key}`" not in text} == set()


def test_every_variable_and_exit_code_is_in_the_reference() -> None:
    from merlin.spec.variables import RESERVED, RETURN_CODE_VARIABLES

    text = (ROOT / "docs/spec-reference.md").read_text()
    assert {name for name in RESERVED | set(RETURN_CODE_VARIABLES) if f"$({name})" not in text} == set()


def test_every_command_is_in_the_commands_page_and_every_option_has_a_help_text() -> None:
    """The page of all options is generated from these help texts."""
    import click

    from merlin.cli.main import COMMANDS, cli

    text = (ROOT / "docs/commands.md").read_text()
    context = click.Context(cli)
    commands = {f"merlin {name}": cli.get_command(context, name) for name in COMMANDS}
    assert {name for name in commands if f"\n## {name}\n" not in text} == set()
    for name, command in list(commands.items()):
        if isinstance(command, click.Group):
            commands |= {
                f"{name} {n}": command.get_command(context, n) for n in command.list_commands(context)
            }
    for name, command in commands.items():
        assert command is not None and command.help, f"{name} has no help text"
        options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
        assert [option.opts for option in options if not option.help] == [], name


def test_the_page_of_all_options_is_generated() -> None:
    text = (ROOT / "docs/cli.md").read_text()
    assert "::: mkdocs-click\n    :module: merlin.cli.main\n    :command: cli\n" in text


def test_the_version_is_the_same_everywhere() -> None:
    import tomllib

    import merlin

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == merlin.__version__


def test_continuous_integration_calls_the_two_commands_and_nothing_else() -> None:
    lines = (ROOT / ".ci/run").read_text().splitlines()
    assert "set -euo pipefail" in lines
    assert [line for line in lines if line.startswith("make")] == ["make check", "make test"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_the_table_of_benchmarks_is_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests/bench"))
    import report
    import run

    kept = json.loads(report.KEPT.read_text(encoding="utf-8"))
    text = report.DOCS.read_text(encoding="utf-8")
    shown = text.partition(report.START)[2].partition(report.END)[0]
    assert shown.strip() == report.tables(kept, run.TOPICS)


@pytest.mark.parametrize(("page", "least"), [("CONTRIBUTING.md", 12), ("docs/extending.md", 40)])
def test_what_contributors_are_pointed_to_exists(page: str, least: int) -> None:
    """The files that a page names; those with <name> in them are to be written."""
    places = re.findall(r"`((?:merlin|tests|docs)/[^`]*)`", (ROOT / page).read_text())
    assert len(places) > least
    assert [place for place in places if "<name>" not in place and not (ROOT / place).exists()] == []
    assert [place for place in places if "<name>" in place and not (ROOT / place).parent.is_dir()] == []
