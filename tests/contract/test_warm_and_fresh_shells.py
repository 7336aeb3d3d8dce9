"""A script cannot tell a warm shell from a fresh one: same files, same output, same messages, same exit code.

Every script runs under both, all of them in one batch, so that what one leaves behind would show in the next.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from merlin.execution.fresh_shell import FreshShell
from merlin.execution.shell import Shell, ShellExit, ShellTask, task_environment
from merlin.execution.waiting import Waiter
from merlin.execution.warm_rules import RULES, can_run_warm, has_valid_syntax
from merlin.execution.warm_shell import WarmShell

BASH = ["/bin/bash"]

# name -> script; all of them may run warm
SCRIPTS = {
    "nothing": "",
    "prints": "echo out; echo err >&2",
    "binary output": r"printf '\0\377\n'",
    "no newline": "printf abc",
    "exit codes": "exit 3",
    "exit beyond 255": "exit 300",
    "exit from inside a function": "f() { exit 4; }\nf\necho never",
    "exit from a nested subshell": "(exit 5); echo $?",
    "last command decides": "true\nfalse",
    "exit without a number": "false\nexit",
    "cwd": "pwd; cd /; pwd",
    "cwd afterwards": 'pwd; echo "${OLDPWD-unset}"; env | grep -c ^OLDPWD',
    "cd and back": "cd / && cd - >/dev/null && pwd; cd /nowhere; echo $?",
    "sets variables": "LEAK=1; export LEAK2=2; x=3",
    "sees no variables": 'echo "${LEAK-unset} ${LEAK2-unset} ${x-unset}"',
    "changes the environment": "export HOME=/nowhere PATH=/bin:/usr/bin; unset LANG; env | sort",
    "sees the whole environment": "env | sort",
    "set -e": "set -e\nfalse\necho never",
    "set -e in a function": "set -e\nf() { false; echo in; }\nf || echo caught\nf\necho never",
    "set -e and a subshell": "set -e\n(exit 3)\necho never",
    "set -u": "set -u\necho $nowhere_set\necho never",
    "set -o pipefail": "set -o pipefail\nfalse | true",
    "set -euo pipefail": "set -euo pipefail\nfalse | cat\necho never",
    "no options left over": "false\necho $nowhere_set; false | true\necho $?",
    "defines functions": "ls() { echo mine; }\nls",
    "sees no functions": "ls | head -3; type ls",
    "exit trap": "trap 'echo bye $?' EXIT\nexit 6",
    "exit trap under set -e": "set -e\ntrap 'echo end $?' EXIT\nnot_a_command_at_all\necho never",
    "exit trap changes the code": "trap 'exit 7' EXIT\nfalse",
    "term trap": "trap 'echo got it' TERM\nkill -TERM 0\necho after",
    "ignored signals": "trap '' TERM\nkill -TERM 0\necho after; trap",
    "traps are listed": "trap -p; trap 'rm -f x' EXIT INT TERM; trap -p",
    "kills its group": "kill 0",
    "kills its group hard": "kill -9 0",
    "a child segfaults": "python3 -c 'import os; os.kill(os.getpid(), 11)'",
    "limits": "ulimit -n 64; ulimit -n; ulimit -c 0",
    "limits afterwards": "ulimit -n; ulimit -c",
    "umask": "umask 077; touch private; stat -c %a private",
    "umask afterwards": "umask; touch public; stat -c %a public",
    "descriptors": "exec 3>three; echo x >&3; exec {fd}>four; echo $fd >&$fd; ls /proc/self/fd",
    "descriptors afterwards": "ls /proc/self/fd; echo no >&3; echo $?",
    "redirects everything": "exec >other 2>&1; echo here; echo err >&2",
    "stdin is empty": "read line; echo $? [$line]; cat; test -t 0; echo $?",
    "reads stdin in a loop": "while read -r l; do echo $l; done; echo end",
    "pipes into a loop": "echo a b | while read -r x y; do echo $y$x; done; echo ${x-unset}",
    "process group": 'python3 -c "import os; print(os.getpgid(0) == os.getppid(), os.getpgid(0) != os.getsid(0))"',
    "background children share the group": (
        'sleep 600 & python3 -c "import os; print(os.getpgid($!) == os.getpgid(0))"; kill $!; wait $!; echo $?'
    ),
    "children of subshells and pipelines share the group": (
        """show='import os; print(os.getpgid(0) == int(os.environ["GROUP"]))'\n"""
        "export GROUP=$(python3 -c 'import os; print(os.getpgid(0))')\n"
        '(python3 -c "$show" & wait)\ntrue | python3 -c "$show" & wait\necho $(python3 -c "$show")'
    ),
    "waits for children": (
        "(until test -e said; do sleep 0.01; done; echo late) & echo early; touch said; wait; echo done"
    ),
    "leaves a child behind": "sleep 0.05 & echo gone",
    "job number of a dead child": "true & wait $!; echo $?; wait; echo $?",
    "execs": "exec echo replaced\necho never",
    "exec fails": "exec not_a_command_at_all\necho never",
    "random differs": "echo $RANDOM | grep -c '[0-9]'",
    "arguments": 'echo $# "$@" [$1]; set -- a b c; echo $# $2; shift; echo $1',
    "name of the script": "echo $0; basename $0 .sh; ls -l $0 | cut -c1-10",
    "line numbers": "echo $LINENO\n\necho $LINENO",
    "command not found": "true\nnot_a_command_at_all --x\necho $?",
    "not executable": "/etc/passwd; echo $?; /; echo $?",
    "error in a builtin": "cd a b; unset 1x; export 2x=3; printf '%d\\n' abc; test 1 -eq a",
    "redirection fails": "echo hi >/nowhere/file; echo $?; cat </nowhere",
    "ambiguous redirection": "x='a b'; echo hi >$x; echo $?",
    "full device": "echo hi >/dev/full; echo $?",
    "missing argument": ": ${1:?needs one}\necho never",
    "here documents": "cat <<END\na $HOME\nEND\ncat <<<word",
    "unfinished here document": "cat <<END\nabc",
    "command substitution": "x=$(echo a; exit 3); echo $? $x; echo `false`$?",
    "process substitution": "cat <(echo inner); diff <(echo a) <(echo a) && echo same",
    "patterns": 'x=path/to/file.txt; echo ${x##*/} ${x%.txt} ${x/path/p} ${#x} "${y:-default}"',
    "arrays": 'a=(1 2 3); echo ${a[@]} ${#a[@]}; for i in "${a[@]}"; do echo $i; done',
    "loops": "for i in {1..3}; do [ $i -eq 2 ] && continue; echo $i; done; while true; do break; done",
    "select": "select x in a b; do echo $x; done; echo $?",
    "case": "case abc in a*) echo yes;; *) echo no;; esac",
    "conditions": "[[ abc =~ b(c) ]] && echo match; [[ -d / && ! -e nope ]] && echo both; (( 1 < 2 )) && echo less",
    "globs": "touch b a c; echo *; echo nope*",
    "printf and date": "printf '%(%Y)T\\n' 0; printf '%5.2f|%s\\n' 1.234 x",
    "broken pipe": "yes | head -1; echo $?",
    "time": "TIMEFORMAT=done; time true; echo $?",
    "nested shells": "bash -c 'echo $0 $1' a b; sh -c 'exit 9'; echo $?",
    "signals are not ignored": "python3 -c 'import signal; print(signal.getsignal(2), signal.getsignal(3), "
    "signal.getsignal(13), signal.pthread_sigmask(0, []))'",
    "comments and blank lines": "\n\n# comment\n\n   echo x # more\n",
    "carriage returns": "echo a\r\necho b\r",
    "a long line": "echo " + "x" * 5000,
    "not ASCII": "echo grüße; touch 'ä ö'",
    "many words": "\n".join(f"echo line {i}" for i in range(200)),
    "quotes in output": 'echo "it\'s" \'a "quote"\' \\$HOME',
    "getopts": "getopts ab x; echo $? $OPTIND",
    "writes beside the script": "mkdir -p sub/dir; echo 1 >sub/dir/file; ln -s sub link",
    "overwrites its own output": "echo first; echo second >>'overwrites its own output.err'",
    "local outside a function": "f() { x=1; }; f; echo $x",
    "unset f": "f() { echo f; }; unset -f f; f; echo $?",
    "break outside a loop": "break; echo $?",
    "hup": "kill -HUP 0",
    "usr1": "kill -USR1 0; sleep 5",
}
BAD_SYNTAX = [
    "if then",
    'echo "abc',
    "echo a\nfi\necho b",
    "echo a; )",
    "case x in",
    "${",
    "f( {",
    "echo $(if)",
]

# an example for every rule, in the order of the rules
REFUSED = {
    "$$ is": ["echo $$", "kill -9 ${$}"],
    "variables that describe": [
        "echo $BASHPID",
        "echo ${BASH_SOURCE[0]}",
        "kill $PPID",
        "UID=3",
        "echo $SHLVL",
    ],
    "variables that a fresh": ["echo $SECONDS", "echo ${PIPESTATUS[@]}", "f() { echo $FUNCNAME; }"],
    "$- shows": ["echo $-", "case ${-} in *i*) ;; esac"],
    "$_ starts": ["echo $_"],
    "an error in arithmetic": ["echo $((1/0)); echo on", "echo $[1+1]"],
    "commands that see": [
        "return 3",
        "f() { return 3; }",
        "source env.sh",
        'eval "$x"',
        "times",
        "exec -a x y",
    ],
    "the dot command": [". ./env.sh", "true && . env.sh", ".\tenv.sh"],
    "job control": ["jobs", "sleep 1 & fg", "disown"],
    "the option stays": ["[[ -o monitor ]] && echo yes", "test -o monitor"],
    "numbers of jobs": ["sleep 1 & kill %1", "wait %1"],
    "a subshell gets": ["kill -INT 0", "kill -s STOP 0", "kill -3 0", "kill -SIGQUIT 0"],
    "these traps": ["trap 'echo x' ERR", "trap x DEBUG", "trap x RETURN"],
    "what words mean": ["alias ll=ls", "shopt -s failglob"],
    "attributes": ["declare -i x", "readonly a=1; a=2", "let x=1", "f() { local x; }"],
    "posix mode": ["set -o posix", "POSIXLY_CORRECT=1"],
    "a bad or indirect": ["echo ${!x}", "echo ${x!y}", "echo ${x@Q}"],
    "a substring": ["echo ${x:1:2}"],
    "a subscript": ["echo ${a[i]}", "a[-1]=3"],
    "a bad argument": ["break foo", "shift 1 2", "continue $n"],
    "exit with": ["exit 1 2", "exit $code", 'exit "$x"'],
}
OPTIONS = ["set -x", "set -m", "set", "set -o", "set -T", "set +o posix", "set -ev", "set -euxo pipefail"]


@pytest.fixture
def env() -> dict[str, str]:
    return task_environment(os.environ, {"STUDY": "contract"})


def script_text(script: str) -> str:
    """As the runner writes it; a command in a YAML block ends with a line end of its own."""
    return f"#!/bin/bash\n\n{script}\n\n"


def write(root: Path, scripts: dict[str, str]) -> list[ShellTask]:
    tasks = []
    for number, (name, script) in enumerate(scripts.items()):
        folder = root / f"{number:03d}"
        folder.mkdir(parents=True)
        path = folder / f"{name}.sh"
        path.write_bytes(script_text(script).encode())
        path.chmod(0o755)
        tasks.append(ShellTask(number, str(folder), name))
    return tasks


def files_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(p.relative_to(folder)): (
            p.lstat().st_mode,
            _PID.sub(b"PID ", p.read_bytes()) if p.is_file() else b"",
        )
        for p in sorted(folder.rglob("*"))
    }


_PID = re.compile(rb"(?<=: ) *\d+ (?=(Segmentation fault|Killed|Terminated))")
Seen = dict[str, tuple[int, dict[str, tuple[int, bytes]]]]


def observe(shell: Shell, root: Path, scripts: dict[str, str]) -> Seen:
    """Run the scripts in `root`, always the same path, and take everything away that can be seen."""
    shutil.rmtree(root, ignore_errors=True)
    tasks = write(root, scripts)
    names = list(scripts)
    exits: list[ShellExit] = list(shell.run(iter([tasks])))
    shell.close()
    assert [e.task for e in exits] == tasks
    return {names[e.task.task]: (e.code, files_of(Path(e.task.directory))) for e in exits}


def both(tmp_path: Path, env: dict[str, str], scripts: dict[str, str]) -> Iterator[tuple[str, Seen, Seen]]:
    root = tmp_path / "run"
    waiter = Waiter(lambda: False, None)
    fresh = observe(FreshShell(BASH, env, waiter, None), root, scripts)
    warm = observe(WarmShell(BASH, env, waiter, None, str(tmp_path), lambda task: None), root, scripts)
    for name in scripts:
        yield name, fresh, warm


def test_every_script_leaves_the_same_under_both_shells(tmp_path: Path, env: dict[str, str]) -> None:
    different = [
        f"{name}: {fresh[name]} != {warm[name]}"
        for name, fresh, warm in both(tmp_path, env, SCRIPTS)
        if fresh[name] != warm[name]
    ]
    assert not different, "\n".join(different)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_the_scan_lets_ordinary_scripts_run_warm(script: str) -> None:
    assert can_run_warm(script_text(script))


@pytest.mark.parametrize("script", ["cd x && run", "a; b", "a || b", "a &&\nb", "a && \\\n  b"])
def test_a_list_at_the_very_end_of_a_script_runs_fresh(script: str) -> None:
    assert not can_run_warm(f"#!/bin/bash\n\n{script}\n")
    assert can_run_warm(f"#!/bin/bash\n\n{script}\n\n")
    assert can_run_warm(f"#!/bin/bash\n\n{script}\necho end\n")


@pytest.mark.parametrize("script", BAD_SYNTAX)
def test_a_syntax_error_is_found_before_a_warm_shell_sees_it(script: str) -> None:
    assert not has_valid_syntax(BASH, script_text(script))
    assert has_valid_syntax(BASH, "#!/bin/bash\n\necho fine\n")


def test_every_rule_of_the_scan_has_an_example_here() -> None:
    assert {next((k for k in REFUSED if why.startswith(k)), why) for why in RULES.values()} == set(REFUSED)


@pytest.mark.parametrize("script", [s for examples in REFUSED.values() for s in examples] + OPTIONS)
def test_the_scan_refuses_what_could_tell(script: str) -> None:
    assert not can_run_warm(script_text(script))
    assert not can_run_warm(script_text(f"true; {script}\ntrue"))


@pytest.mark.parametrize(
    "script",
    [
        "/usr/local/bin/simulate --history --exit-on-error a.b.set data/jobs.txt",
        "exit 0",
        "exit $?",
        "set -e",
        "set -euo pipefail",
        "python3 run.py $(date) > result.json && exit 101",
    ],
)
def test_the_scan_is_not_put_off_by_paths_and_options(script: str) -> None:
    assert can_run_warm(script_text(script))
