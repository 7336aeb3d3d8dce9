"""Text in a samples file that a shell would act on: refused in scripts, harmless in the environment."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
from commands import run_merlin

HOSTILE = [
    "$(touch PWNED)",
    "`touch PWNED`",
    "'; touch PWNED; '",
    '"; touch PWNED; "',
    "; touch PWNED",
    "x\ntouch PWNED\nEOF\ntouch PWNED",
    '" + open("PWNED", "w").name + "',
    "* ~ \\ %s $HOME",
]
STUDY = r"""
description: {name: hostile, description: none}
study:
  - name: warm
    run: {cmd: 'printf "%s" "$MERLIN_VALUE_NAME" > out'}
  - name: fresh
    run: {cmd: 'printf "%s" "$MERLIN_VALUE_NAME" > out', fresh_shell: true}
  - name: posix
    run: {cmd: 'printf "%s" "$MERLIN_VALUE_NAME" > out', shell: /bin/sh}
  - name: snake
    run:
      cmd: import os; open("out", "w").write(os.environ["MERLIN_VALUE_NAME"])
      shell: /usr/bin/env python3
  - name: text
    run: {cmd: 'echo "\$(MPICXX)" ''$(MPICXX)'' > out'}
merlin:
  samples: {file: s.csv, column_labels: [NAME, X]}
"""
USES = {
    "unquoted": "echo $(NAME)",
    "single": "echo '$(NAME)'",
    "double": 'echo "$(NAME)"',
    "document": "cat <<EOF\n$(NAME)\nEOF",
    "quoted document": "cat <<'EOF'\n$(NAME)\nEOF",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with (tmp_path / "s.csv").open("w", newline="") as file:
        csv.writer(file).writerows([value, i] for i, value in enumerate(HOSTILE))
    return tmp_path


def test_any_text_comes_through_the_environment_and_nothing_of_it_runs(folder: Path) -> None:
    (folder / "s.yaml").write_text(STUDY)
    done = run_merlin("run", "--local", "s.yaml", cwd=folder)
    assert done.returncode == 0, done.stderr
    for step in ("warm", "fresh", "posix", "snake"):
        outputs = [path.read_text() for path in sorted(folder.glob(f"hostile_*/{step}/*/out"))]
        assert outputs == HOSTILE, step
    (text,) = folder.glob("hostile_*/text/out")
    assert text.read_text() == "$(MPICXX) $(MPICXX)\n"
    assert not list(folder.rglob("PWNED"))


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_script_with_such_text_is_refused_and_nothing_is_left(folder: Path, use: str) -> None:
    block = "cmd: |\n" + "".join(f"        {line}\n" for line in use.splitlines())
    spec = re.sub(
        r"study:.*merlin:",
        lambda _: "study:\n  - name: a\n    run:\n      " + block + "merlin:",
        STUDY,
        flags=re.S,
    )
    (folder / "s.yaml").write_text(spec)
    for verb in (["validate"], ["run", "--local"]):
        done = run_merlin(*verb, "s.yaml", cwd=folder)
        assert done.returncode == 2
        found = done.stdout + done.stderr
        assert all(f"row {row}, column NAME" in found for row in range(len(HOSTILE))), found
    assert sorted(path.name for path in folder.iterdir()) == ["s.csv", "s.yaml"]


def test_the_example_of_the_reference_takes_any_text(tmp_path: Path) -> None:
    reference = Path(__file__).parents[2] / "docs" / "spec-reference.md"
    section = reference.read_text().partition("### Text in samples")[2]
    (tmp_path / "s.yaml").write_text(section.partition("```yaml\n")[2].partition("```")[0])
    assert run_merlin("run", "--local", "s.yaml", cwd=tmp_path).returncode == 0
    greetings = [path.read_text() for path in sorted(tmp_path.glob("greetings_*/greet/*/*.txt"))]
    assert greetings == ["hello, Ada\n", "hello, $(touch PWNED)\n", 'hello, "Eve"; ls\n']
