"""Decide which scripts may run in a warm shell: those that behave as in a shell of their own.

In a warm shell a script is sourced in a forked subshell. That subshell has its own working directory,
variables, functions, traps, options, limits, file descriptors and process group, and ends at `exit` and at
a syntax error like any shell. The features below behave differently there, so a script that mentions one of them
gets a fresh shell. The scan reads words, not syntax. A word inside a quoted string counts as well; that costs
speed and nothing else.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePath

_OLDEST_BASH = (5, 0)  # BASH_ARGV0 and EPOCHREALTIME

_WORD = r"(?<![\w/.-])(?:%s)(?![\w/.-])"  # not a part of a path or an option

# pattern -> how a script could notice the difference
RULES: dict[str, str] = {
    # identity of the shell
    r"\$\$|\$\{\$": "$$ is the warm shell's process id in every subshell",
    r"\b(?:BASH\w*|PPID|E?UID=|GROUPS|SHELLOPTS|SHLVL)": "variables that describe the shell process",
    r"\b(?:FUNCNAME|PIPESTATUS|SECONDS|DIRSTACK|HISTCMD)\b": "variables that a fresh shell starts anew",
    r"\$-|\$\{-": "$- shows how the shell was started",
    r"-o\s+monitor": "the option stays set in a subshell, though its job control is off",
    r"\$_\b|\$\{_\b": "$_ starts as the path of the script",
    r"\$(?:\(\(|\[)": "an error in arithmetic ends a sourced script, a fresh shell continues",
    # commands that see the sourcing or the subshell
    _WORD % r"return|caller|source|eval|times|suspend|logout|exec\s+-\w+|enable|hash|coproc|history|fc": (
        "commands that see the sourcing, or run text that this scan does not"
    ),
    r"(?:^|[\s;&|({`!])\.\s": "the dot command runs text that this scan does not",
    _WORD % "jobs|fg|bg|disown": "job control belongs to the warm shell",
    r"\b(?:kill|wait)\b[^\n;&|]*%": "numbers of jobs count the warm shell's, too",
    r"\bkill\b[^\n;&|]*(?:INT|QUIT|STOP|TSTP|TTIN|TTOU|-(?:2|3|19|20|21|22)\b)": (
        "a subshell gets these signals where a shell ignores them, or stops the warm shell's job"
    ),
    _WORD % "DEBUG|RETURN|ERR": "these traps also see the sourcing",
    _WORD % "alias|unalias|shopt|command_not_found_handle": "what words mean could change",
    _WORD % "declare|typeset|readonly|let|local|compgen|complete": (
        "attributes whose errors end a sourced script; listings of the shell's variables"
    ),
    r"\bposix\b|POSIXLY_CORRECT": "posix mode changes which errors end a shell",
    # errors that end a sourced script while a fresh shell continues
    r"\$\{[!@*#]?\w*[!@]": "a bad or indirect substitution",
    r"\$\{\w+:(?![-=+?])": "a substring is arithmetic",
    r"\$\{[#!]?\w+\[(?![@*]\])": "a subscript is arithmetic",
    r"(?:^|[\s;&|({])\w+\[[^\]\n]*\]\+?=": "a subscript is arithmetic",
    _WORD % "break|continue|shift" + r"[ \t]*(?![ \t]*\d?[ \t]*(?:$|[\n;&|)}#]))": "a bad argument of these",
    _WORD % "exit" + r"[ \t]*(?![ \t]*(?:"
    r"(?:\d+|\$\?|\"\$\?\")[ \t]*['\"]|"
    r"(?:\d+|\$\?|\"\$\?\")?[ \t]*(?:$|[\n;&|)}#`])))": (
        "exit with more than a number"
    ),
}  # fmt: skip

_SET = re.compile(
    r"(?<![\w/.-])set(?![\w/.-])"
    r"(?!\s+(?:-{1,2}\s|[-+][euafC]*(?:[euafC]|o\s+(?:pipefail|errexit|nounset|noglob))\b))"
)
_RULE = re.compile("|".join(f"(?:{pattern})" for pattern in RULES), re.MULTILINE)
_LIST = re.compile(r";|&&|\|\|")
_OPEN_LIST = re.compile(r"(?:&&|\|\||\\)\s*(?:#.*)?$")
_HARMLESS_VALUE = re.compile(r"[A-Za-z0-9_.,:@%+=/-]*")

# set in the environment, these change what a shell does before or while it runs a script
_ENVIRONMENT = ("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "POSIXLY_CORRECT", "BASH_COMPAT", "BASH_XTRACEFD")
# functions in the environment that would replace what the warm shell itself uses
_OUR_COMMANDS = ("cd", "set", "unset", "export", "exec", "exit", "echo", ".")


def can_run_warm(command: str) -> bool:
    """Return whether a bash script behaves the same in a warm shell as in a fresh one, as far as a scan can show."""
    return not (_RULE.search(command) or _SET.search(command) or "\0" in command or _ends_in_list(command))


def _ends_in_list(script: str) -> bool:
    """Return whether the end of the script may be the end of a list of commands, with no empty line after it.

    When a subshell sources such a script, bash runs the last command of the list without a fork: it then has
    another parent, and no message reports a crash. Commands from a YAML block have an empty line.
    """
    if script.endswith("\n\n"):
        return False
    *_, before, last = ["", *script.rstrip("\n").split("\n")]
    return bool(_LIST.search(last) or _OPEN_LIST.search(before))


def is_harmless(values: Iterable[str]) -> bool:
    """Return whether values put into a script cannot change its syntax."""
    return all(_HARMLESS_VALUE.fullmatch(value) for value in values)


def is_plain_bash(argv: Sequence[str]) -> bool:
    """Return whether the shell is bash without options, given by path, by name or through env."""
    words = list(argv)
    if len(words) == 2 and PurePath(words[0]).name == "env":
        words = words[1:]
    return len(words) == 1 and PurePath(words[0]).name == "bash"


def environment_allows(env: Mapping[str, str]) -> bool:
    return not any(name in env for name in _ENVIRONMENT) and not any(
        f"BASH_FUNC_{name}%%" in env for name in _OUR_COMMANDS
    )


@lru_cache(maxsize=8)
def bash_is_new_enough(argv: tuple[str, ...]) -> bool:
    """Return whether the shell exists and is a bash that the warm shell can be built on."""
    try:
        found = subprocess.run(
            [*argv, "-c", 'echo "${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"'],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        major, minor = found.stdout.split()
        return (int(major), int(minor)) >= _OLDEST_BASH
    except (OSError, ValueError, subprocess.SubprocessError):
        return False


def has_valid_syntax(argv: Sequence[str], script: str) -> bool:
    """Return whether bash can parse the script: some syntax errors have another exit code in a warm shell."""
    try:
        checked = subprocess.run(
            [*argv, "-n", "/dev/stdin"], input=script.encode(), capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return checked.returncode == 0 and not checked.stderr
