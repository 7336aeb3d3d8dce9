"""The scripts that shells load, and how their questions are answered: click's way, with three differences.

Paths are completed as paths, and not as words that end there. An option that takes several words completes every one of
them. The list of verbs is drawn from the table of commands, so that no command is loaded for it.
"""

from __future__ import annotations

from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from merlin.cli.argv import ManyCommand, ManyOption, is_word

_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' kind value
    COMPREPLY=()
    while IFS=',' read -r kind value; do
        case $kind in
            path) COMPREPLY+=("$value"); compopt -o filenames ;;
            plain) COMPREPLY+=("$value") ;;
            dir) compopt -o dirnames ;;
            file) compopt -o default ;;
        esac
    done < <(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD=$COMP_CWORD %(complete_var)s=bash_complete "$1" 2> /dev/null)
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""

_ZSH = """\
#compdef %(prog_name)s

%(complete_func)s() {
    local -a plain described paths response
    local kind key descr
    (( ! $+commands[%(prog_name)s] )) && return 1
    response=("${(@f)$(env COMP_WORDS="${words[*]}" COMP_CWORD=$((CURRENT-1)) \\
        %(complete_var)s=zsh_complete %(prog_name)s 2> /dev/null)}")
    for kind key descr in ${response}; do
        case $kind in
            path) paths+=("$key") ;;
            plain) if [[ $descr == _ ]]; then plain+=("$key"); else described+=("$key:$descr"); fi ;;
            dir) _path_files -/ ;;
            file) _path_files -f ;;
        esac
    done
    (( $#described )) && _describe -V unsorted described -U
    (( $#plain )) && compadd -U -V unsorted -a plain
    (( $#paths )) && compadd -U -f -V unsorted -a paths
    return 0
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    %(complete_func)s "$@"
else
    compdef %(complete_func)s %(prog_name)s
fi
"""

_FISH = """\
function %(complete_func)s
    set -l response (env %(complete_var)s=fish_complete COMP_WORDS=(commandline -cp | string collect) \\
        COMP_CWORD=(commandline -t | string collect) %(prog_name)s 2> /dev/null)
    for completion in $response
        set -l found (string split -m 1 "," -- $completion)
        switch $found[1]
            case path
                if string match -q "~*" -- $found[2]; or not test -d $found[2]
                    echo $found[2]
                else
                    echo $found[2]/
                end
            case plain
                echo $found[2]
            case dir
                __fish_complete_directories $found[2]
            case file
                __fish_complete_path $found[2]
        end
    end
end

complete --no-files --keep-order --command %(prog_name)s --arguments "(%(complete_func)s)"
"""


class _Completes(ShellComplete):
    """Completes every word of an option that takes several words, and not only the first one."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[Any]]:
        self.ctx_args["obj"] = args  # for values that depend on other words
        flag = "" if incomplete.startswith("-") else _open_option(self.cli, args)
        return super().get_completions([*args, flag] if flag else args, incomplete)


def _open_option(cli: click.Command, args: list[str]) -> str:
    """The flag of the option that the next word belongs to as one more value; "" if there is none."""
    command: click.Command | None = cli
    at = 0
    while isinstance(command, click.Group) and at < len(args):
        command = command.get_command(click.Context(command), args[at]) if is_word(args[at]) else command
        at += 1
    if not isinstance(command, ManyCommand):
        return ""
    many = {flag for param in command.params if isinstance(param, ManyOption) for flag in param.opts}
    words = args[at:]
    flags = [i for i, word in enumerate(words) if not is_word(word)]
    if not flags or words[flags[-1]] not in many or len(words) == flags[-1] + 1:
        return ""
    # before the command has its argument, a later word may be that one
    has_argument = any(is_word(word) for word in words[: flags[0]])
    return words[flags[-1]] if has_argument else ""


class _Bash(_Completes, BashComplete):
    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """Check nothing, as that would start a bash. Too old ones ignore `-o nosort` with a message."""


class _Zsh(_Completes, ZshComplete):
    source_template = _ZSH


class _Fish(_Completes, FishComplete):
    source_template = _FISH


_CLASSES: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def register() -> None:
    """Make click use these classes when a shell asks."""
    for name, shell in _CLASSES.items():
        add_completion_class(shell, name)


def script_for(shell: str, cli: click.Command) -> str:
    """The script that the shell loads."""
    return _CLASSES[shell](cli, {}, "merlin", "_MERLIN_COMPLETE").source()
