"""What to type after a run has stopped early."""

from __future__ import annotations

from merlin.errors import command_line

LIMITS = ("max_failures:", "canary:")  # how stop reasons begin that old failures bring about again


def next_commands(workspace: str, stop_reason: str, *, has_failed: bool, root: str = "") -> list[str]:
    """Lines with the commands that go on; tasks of the study in `workspace` are missing, some may have failed.

    `root` is the study's own workspace, which alone can be updated, if `workspace` is an extension.
    """
    restart, again = command_line("restart", workspace), command_line("restart", workspace, "--failed")
    if stop_reason.startswith(LIMITS):
        lines = [
            "what failed would stop it again. If the cause is in the spec, mend it and update the study: "
            + command_line("run", "SPEC", "--update", root or workspace),
            f"if the cause lies elsewhere, mend it and run what failed, too: {again}",
        ]
        if stop_reason.startswith("max_failures:"):
            more = command_line("restart", workspace, "--local", "--max-failures", "N")
            lines.append(f"or allow more failures, N or P%: {more}")
        return lines
    lines = [f"resume with: {restart}"]
    if has_failed:
        lines.append(f"or, to run what failed again, too: {again}")
    return lines
