"""Scripts: the tokens of one sample filled in, everything else left to the shell."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from small_plans import step
from study_on_disk import make_workspace

from merlin.execution.scripts import ScriptTemplate
from merlin.execution.shell import shell_argv, task_environment
from merlin.workspace.directory import Workspace


def text(workspace: Workspace, command: str, task: int, instance: str = "b") -> str:
    template = ScriptTemplate(workspace, workspace.instance(instance), command)
    (script,) = template.scripts([task])
    head, _, body = script.text.partition("\n\n")
    assert head == "#!/bin/bash"
    return body.removesuffix("\n")


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    first = step("a", 50)
    second = replace(step("b", 50), same_workspaces={"a": "a"})
    once = replace(step("c", 1), per_sample=False)
    return make_workspace(tmp_path, first, second, once)


@pytest.mark.parametrize(
    ("command", "filled"),
    [
        ("$(X)", "26.0"),
        ("$(MERLIN_SAMPLE_ID) $(MERLIN_SAMPLE_PATH)", "26 01/01"),
        ("$(MERLIN_SAMPLE_VECTOR) $(MERLIN_SAMPLE_NAMES)", "26.0 X"),
        ("$(WORKSPACE)", "{root}/b/01/01"),
        ("cat $(a.workspace)/a.out", "cat {root}/a/01/01/a.out"),
        ("$(X)$(X) $(MERLIN_SAMPLE_ID)", "26.026.0 26"),
        ("$(date) $(ls | wc -l) `ls` $((1 + 2)) $(Y)", "$(date) $(ls | wc -l) `ls` $((1 + 2)) $(Y)"),
        ("printf '%s %d%%' $(X)", "printf '%s %d%%' 26.0"),
        ("$(echo $(X))", "$(echo 26.0)"),
        ("nothing to fill", "nothing to fill"),
    ],
)
def test_only_sample_tokens_are_filled_in(workspace: Workspace, command: str, filled: str) -> None:
    assert text(workspace, command, 26) == filled.replace("{root}", str(workspace.path))


def test_all_paths_are_one_word_list(workspace: Workspace) -> None:
    assert text(workspace, "$(MERLIN_PATHS_ALL)", 3).split()[-1] == "01/24"


def test_a_step_without_samples_knows_only_its_own_directory(workspace: Workspace) -> None:
    assert text(workspace, "$(WORKSPACE) $(X)", 0, "c") == f"{workspace.path}/c $(X)"


def test_scripts_of_scattered_tasks_come_in_order_with_their_own_values(workspace: Workspace) -> None:
    template = ScriptTemplate(workspace, workspace.instance("b"), "$(X)")
    scripts = list(template.scripts([0, 1, 7, 30, 31]))
    assert [s.task for s in scripts] == [0, 1, 7, 30, 31]
    assert [float(s.text.split()[-1]) for s in scripts] == [0, 1, 7, 30, 31]
    assert scripts[3].directory == str(workspace.path / "b/01/05")


def test_a_shell_with_options_is_split_into_words() -> None:
    assert shell_argv("/usr/bin/env python3 -u") == ["/usr/bin/env", "python3", "-u"]
    assert shell_argv("") == ["/bin/bash"]


def test_tasks_do_not_inherit_another_directory() -> None:
    env = task_environment({"PWD": "/a", "OLDPWD": "/b", "_": "/c", "HOME": "/h", "A": "1"}, {"A": "2"})
    assert env == {"HOME": "/h", "A": "2"}
