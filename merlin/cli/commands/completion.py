"""`merlin completion` prints what lets a shell complete merlin's words."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script that lets a shell complete verbs, options, specs, workspaces and steps.

    bash: eval "$(merlin completion bash)" in ~/.bashrc. zsh: the same with zsh in ~/.zshrc, after compinit.
    fish: merlin completion fish > ~/.config/fish/completions/merlin.fish
    """
    from merlin.cli.completing.shells import script_for

    context = click.get_current_context()
    print(script_for(shell, context.find_root().command), end="")
