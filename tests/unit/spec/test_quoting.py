"""Which `$(NAME)` of a script the shell runs, proven by the shell itself."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from merlin.spec.quoting import is_shell, uses

SCRIPTS = [
    "echo $(A)",
    'echo "$(A)"',
    "echo '$(A)'",
    "sed 's/^CXX = $(A)/CXX = x/' /dev/null",
    r'echo "\$(A)"',
    r'echo "\\$(A)"',
    "echo 1 # it's $(A)\necho '$(B)' $(C)",
    "echo a#$(A)",
    "cat <<'EOF'\n$(A) it's\nEOF\necho $(B)",
    "cat <<EOF\n\"$(A)\" '$(B)' \\$(C)\nEOF\necho '$(D)'",
    "cat <<-\\EOF | cat\n\t$(A)\n\tEOF\necho $(B)",
    "cat <<A <<'B'\n$(C)\nA\n$(D)\nB\n",
    "echo \"`echo $(A)` '$(B)'\"",
    "echo \"$(echo '$(A)' $(B))\" '$(C)'",
    "echo ${X:-$(A)} \"${X:-'$(B)'}\" '$(C)'",
    "echo ${#HOME} $(A)",
    "echo $((1 << 2)) '$(A)'",
    "((1 << 2)); echo '$(A)'",
    "echo $'it\\'s $(A)' $(B)",
    'x="$(case a in a) echo \'$(A)\' $(B);; esac)"; echo "$(C)"',
    "(echo '$(A)'; echo $(B))",
    "cat <<<'$(A)' <<<$(B)",
    "echo \"don't $(A)\" '\"' $(B)",
    "if true; then\n  echo '$(A)'\nfi\necho $(B)",
    'x="$(echo a case)"; echo "\'$(A)\'"',
    "x=`echo \\$(A)`",
    'echo "`echo \\"\'$(A)\'\\"`"',
    "echo `echo '$(A)' $(B)` '$(C)'",
    "((echo 1); cat <<E\nit's $(A)\nE\n)\necho $(B)",
    "((echo 1) # it's\necho $(A) )",
    "cat <<E\\\nOF\n$(A)\nEOF",
    "echo $[1<<2] $(A)",
    "echo ${X:-$(echo <<'E'\n$(A)\nE\n)} $(B)",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_bash_runs_exactly_what_the_scan_says(script: str, tmp_path) -> None:
    found = uses(script)
    for use in found:
        command = tmp_path / use.token.name
        command.write_text(f"#!/bin/sh\n: > {tmp_path}/{use.token.name}.ran\n")
        command.chmod(0o755)
    path = f"{tmp_path}:{subprocess.os.environ['PATH']}"
    assert (
        subprocess.run([shutil.which("bash"), "-c", script], env={"PATH": path, "HOME": "/"}).returncode == 0
    )
    ran = {file.stem for file in tmp_path.glob("*.ran")}
    assert {use.token.name for use in found if use.runs} == ran
    assert found


def test_what_nobody_can_follow_counts_as_run() -> None:
    (use,) = uses("(" * 20_000 + "'$(A)'")
    assert use.runs and not use.in_quotes


@pytest.mark.parametrize(
    ("shell", "shells"),
    [
        ("/bin/bash", True),
        ("/usr/bin/env bash -e", True),
        ("sh", True),
        ("/usr/bin/env python3", False),
        ("/opt/perl", False),
        ("/usr/bin/ksh93 -e", True),
        ("/opt/bash-5.2", True),
        ("/usr/bin/pwsh", True),
        ("/usr/bin/tclsh8.6", False),
        ("$(MY_SHELL)", True),
        ("", True),
    ],
)
def test_interpreters_that_are_no_shells_are_known(shell: str, shells: bool) -> None:
    assert is_shell(shell) is shells
