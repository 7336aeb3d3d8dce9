from __future__ import annotations

import shlex

from merlin.errors import command_line
from merlin.views.after_stop import next_commands


def test_a_command_can_be_pasted_whatever_its_path() -> None:
    for path in ("/w/my out/a'b", "/w/$(rm)*", "/w/plain"):
        assert shlex.split(command_line("restart", path, "--failed")) == [
            "merlin",
            "restart",
            path,
            "--failed",
        ]
    assert command_line("restart", "/w/plain") == "merlin restart /w/plain"


def test_missing_tasks_are_resumed_and_failed_ones_only_on_request() -> None:
    assert next_commands("/w", "interrupted", has_failed=False) == ["resume with: merlin restart /w"]
    resume, again = next_commands("/w", "a task of step 'a' failed hard", has_failed=True)
    assert resume == "resume with: merlin restart /w"
    assert again.endswith("merlin restart /w --failed")


def test_after_too_many_failures_no_restart_is_named_that_would_stop_again() -> None:
    for reason, num in (("max_failures: 6 of 100 tasks failed", 3), ("canary: the first 10 tasks failed", 2)):
        new_study, again, *_ = lines = next_commands("/w", reason, has_failed=True)
        assert len(lines) == num
        assert "in the spec" in new_study and "merlin run" in new_study
        assert again.endswith("merlin restart /w --failed")
    assert next_commands("/w", "max_failures: x", has_failed=True)[2].endswith("--max-failures N")
