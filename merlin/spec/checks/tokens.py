"""Every `$(NAME)` of a spec: does something define it, is it the shell's, or is it text?"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from functools import cached_property

from msgspec import Struct

from merlin.base.document.findings import Findings, Place, SourceText, did_you_mean, is_one_edit_away
from merlin.base.document.tokens import Token, find_incomplete, find_tokens, is_shell_substitution
from merlin.base.document.tree import SCRIPT_KEYS, Entry, Path, token_place
from merlin.spec.checks.nested_tokens import known_too_late, with_names
from merlin.spec.checks.steps import StepGraph, shell_of_study
from merlin.spec.expand import Expansion, column_labels, dependency_entries
from merlin.spec.quoting import Quoting, Use, is_shell, uses
from merlin.spec.variables import (
    OUTPUT_PATH,
    RESERVED,
    SAMPLE_TOKENS,
    mentioned_values,
    sample_names,
    uses_samples,
    value_variable,
)

_WORD = re.compile(r"\w+")
_CAPITALS = re.compile(r"[A-Z][A-Z0-9_]*")
_OF_AWK = frozenset(
    {"NF", "NR", "FNR", "ARGC", "ARGIND", "RSTART", "RLENGTH"}
)  # numbers: $(NF) is the last field
_AWK = re.compile(r"(?<![\w.-])[gmn]?awk\s[^\n;|&]*'[^']*$")
_FILE = re.compile(r"/[\w-]+\.\w+(?![\w./*?\[{$-])")  # no directory and no pattern
MAX_PROGRAM = 4000  # characters of a program of awk that are looked at
MAX_NAMES = 4  # in a hint
_VARIABLES = (("env", "variables"), ("env", "labels"))


def check_tokens(
    source: SourceText,
    tree: Entry,
    expansion: Expansion,
    graph: StepGraph,
    findings: Findings,
    *,
    allow_undefined: bool,
) -> None:
    """Report tokens without a meaning, in keys and values of every block but `user`.

    With `allow_undefined` what nothing defines is left as it is, with a warning.
    """
    names = Names(expansion, graph)
    made: set[str] = set()
    tree = with_names(tree, expansion.values, made)
    checker = _Checker(source, tree, names, findings, allow_undefined, made)
    for path, entry in tree.walk():
        if path[:1] == ("user",):
            continue
        for key, item in entry.mapping.items():
            for token in find_tokens(key):
                if token.name not in names.defined:
                    checker.undefined(token.name, item.key_place)
        if isinstance(entry.content, str):
            checker.check_text(path, entry)


class Names(Struct, frozen=True, dict=True):
    """Everything that a token may name in one spec."""

    expansion: Expansion
    graph: StepGraph

    @cached_property
    def parameters(self) -> list[str]:
        return list(self.expansion.tree.get("global.parameters").mapping)

    @cached_property
    def columns(self) -> list[str]:
        return column_labels(self.expansion.tree)

    @cached_property
    def has_samples(self) -> bool:
        return bool(self.expansion.tree.get("merlin", "samples").mapping)

    @cached_property
    def per_sample(self) -> frozenset[str]:
        """The steps whose scripts run once for each sample."""
        graph = self.graph
        scripts = {name: graph.scripts(name) for name in graph.steps if self.has_samples}
        return frozenset(name for name, text in scripts.items() if uses_samples(text, self.columns))

    @cached_property
    def defined(self) -> frozenset[str]:
        return frozenset(
            {
                *self.expansion.values,
                *self.parameters,
                *(f"{name}.{suffix}" for name in self.parameters for suffix in ("label", "name")),
                *self.columns,
                *(name for name, _ in dependency_entries(self.expansion.tree)),
                *(f"{step}.workspace" for step in self.graph.steps),
                *RESERVED,
                *(name.lower() for name in SAMPLE_TOKENS if self.has_samples),
                OUTPUT_PATH,
            }
        )


class _Checker(Struct, frozen=True, dict=True):
    source: SourceText
    tree: Entry
    names: Names
    findings: Findings
    allow_undefined: bool
    made: set[str]  # names that are made of variables

    def check_text(self, path: Path, entry: Entry) -> None:
        """Check every token of one value; `$(date)` is left to the shell where a shell will read it."""
        if path[-1] in SCRIPT_KEYS:
            self._check_values(path, entry)
        uses = self._uses(path, entry.text)
        self._check_incomplete(entry, {use.token.start for use in uses if use.runs})
        seen: dict[str, int] = {}
        for use in uses:
            name = use.token.name
            nth = seen[name] = seen.get(name, -1) + 1
            if name in self.names.defined:
                self._check_use(use, path, entry, nth)
            elif name not in self.made or not re.search(rf"(?<!\$\()\b{re.escape(name)}\b", entry.text):
                self._check_undefined(use, path, token_place(self.source, entry, name, nth))

    def _check_incomplete(self, entry: Entry, starts: set[int]) -> None:
        """Report names of variables that are complete only once there are parameters or samples, each name once."""
        text = entry.text
        found = (t for t in reversed(find_incomplete(text)) if text.index("$(", t.start + 2) in starts)
        for name, token in {token.name: token for token in found}.items():
            inner = find_tokens(name)[0]
            if inner.name not in self.names.defined:
                continue
            known, is_sure = known_too_late(name, self.names.expansion)
            if known:
                message = f"$({name}) is left as it is: $({known}) is filled in before $({inner.name}) is"
                hint = "choose in the script, or give the values to a parameter"
                nth = [t.name for t in find_tokens(text[: token.start])].count(inner.name)
                place = token_place(self.source, entry, inner.name, nth)
                report = self.findings.error if is_sure else self.findings.warning
                report(place, message, text=f"$({name})", hint=hint, code="token")

    def _uses(self, path: Path, text: str) -> list[Use]:
        """The tokens of a value, with their quoting in a script for a shell; for another interpreter they are text."""
        if _is_script(path) and is_shell(self._shell(path)):
            return uses(text)
        quoting: Quoting = "text" if _is_script(path) or path[-1] == "description" else "plain"
        return [Use(token, quoting) for token in find_tokens(text)]

    def _shell(self, path: Path) -> str:
        """The interpreter of a script; samples are generated by /bin/sh."""
        if path[0] != "study":
            return "/bin/sh"
        tree = self.names.expansion.tree
        return tree.get(*path[:2], "run", "shell").text or shell_of_study(tree)

    def _check_undefined(self, use: Use, path: Path, place: Place) -> None:
        """Report a token that nothing defines, unless it is left to the shell or plain text."""
        name = use.token.name
        is_variable = path[:2] in _VARIABLES and len(path) > 2
        if is_variable and str(path[2]) not in self._run_variables:
            is_unused = str(path[2]) not in self._used_variables
            self._left_alone(name, place, unused=str(path[2]) if is_unused else "")
        elif use.escaped and use.quoting == "plain" and _is_script(path):
            message = f"\\$({name}) outside of quotes is a syntax error of the shell"
            self._warn(place, message, f"\\$({name})", f"for the text itself write {_as_text(use)}")
        elif not use.runs:
            if use.quoting != "comment" and not use.escaped:
                self._left_alone(name, place, in_awk=use.quoting == "single" and self._is_in_awk(use, path))
        elif not ((_is_script(path) or is_variable) and self._is_shells(use.token, place)):
            self.undefined(name, place, use if _is_script(path) else None)

    def _left_alone(self, name: str, place: Place, unused: str = "", *, in_awk: bool = False) -> None:
        """Warn about a token that stays text if it looks mistyped. In awk, an unknown $(XX) silently means the line.

        It is an error if it looks like a column that nothing else uses: the data set would silently be wrong.
        """
        hint = self._suggest(name, cutoff=0.8)
        near = [token.name for token in find_tokens(hint)]
        if not hint and _CAPITALS.fullmatch(name) and name not in _OF_AWK and not shutil.which(name):
            near = [known for known in self._capitals if is_one_edit_away(name, known)]
            shown = near or (self._capitals if in_awk else [])
            hint = " or ".join(f"$({known})" for known in shown[:MAX_NAMES])
            hint = hint and f"did you mean {hint}?"
        missed = [column for column in self._unused_columns if column in near]
        if missed and not self.allow_undefined:
            message = f"$({name}) is not defined, and no step uses $({missed[0]})"
            self.findings.error(place, message, text=f"$({name})", hint=hint, code="token")
            return
        if unused and not is_shell_substitution(name):
            message = f"$({name}) is not defined, and nothing uses {unused}"
        elif hint or name.endswith(".workspace"):
            message = f"$({name}) is not defined, and is left as it is"
        else:
            return
        self._warn(place, message, f"$({name})", hint)

    @cached_property
    def _unused_columns(self) -> list[str]:
        """Columns of the samples that no script or function gets."""
        used: set[str] = set()
        for path, entry in self.tree.walk():
            if path[:2] == ("merlin", "samples"):
                continue
            if path[-1:] == ("function",):
                return []
            if isinstance(entry.content, str):
                used |= {token.name for token in find_tokens(entry.text)} | mentioned_values(entry.text)
        if used & {"MERLIN_SAMPLE_VECTOR", "merlin_sample_vector"}:
            return []
        return [name for name in self.names.columns if not used & {name, value_variable(name)}]

    def _is_in_awk(self, use: Use, path: Path) -> bool:
        """Is the token in the program of an awk command?"""
        text = self.tree.get(*path).text[: use.token.start]
        return _AWK.search(text[-MAX_PROGRAM:]) is not None

    @cached_property
    def _capitals(self) -> list[str]:
        """The names in capitals that the spec defines; columns come first, because programs get these."""
        names = self.names
        variables = [name for block in _VARIABLES for name in self.tree.get(*block).mapping]
        return [name for name in (*names.columns, *names.parameters, *variables) if _CAPITALS.fullmatch(name)]

    def _warn(self, place: Place, message: str, text: str, hint: str) -> None:
        self.findings.warning(place, message, text=text, hint=hint, code="token")

    def undefined(self, name: str, place: Place, use: Use | None = None) -> None:
        """Report an undefined token that a shell would run (`use`), or that a value needs."""
        message = f"$({name}) is not defined"
        if name.endswith(".workspace"):
            message = f"$({name}) names the step {name.removesuffix('.workspace')!r}, which does not exist"
        hint = self._suggest(name)
        if use and shutil.which(name):
            self._warn(place, f"{message}; the shell will run the command {name}", name, hint)
            return
        if self.allow_undefined:
            left = "the shell will run it" if use else "it is left as it is"
            self._warn(place, f"{message}; {left}", f"$({name})", hint)
            return
        hint = f"{hint} Otherwise: " if hint else "define it (env.variables, --vars, --pgen); "
        if use:
            hint += f"for the text itself write {_as_text(use)}; "
        hint += f"--allow-undefined {'lets the shell run it' if use else 'leaves it as it is'}"
        self.findings.error(place, message, text=f"$({name})", hint=hint, code="token")

    @cached_property
    def _run_variables(self) -> frozenset[str]:
        """Variables and labels whose text a shell or a value gets."""
        return self._with_their_own({name for name, runs in self._uses_of_variables() if runs})

    @cached_property
    def _used_variables(self) -> frozenset[str]:
        return self._with_their_own({name for name, _ in self._uses_of_variables()})

    def _uses_of_variables(self) -> Iterator[tuple[str, bool]]:
        yield OUTPUT_PATH, True
        for path, entry in self.tree.walk():
            if path[:1] == ("user",) or path[:2] in _VARIABLES:
                continue
            for key in entry.mapping:
                yield from ((token.name, True) for token in find_tokens(key))
            if isinstance(entry.content, str):
                yield from ((use.token.name, use.runs) for use in self._uses(path, entry.content))

    def _with_their_own(self, names: set[str]) -> frozenset[str]:
        """These names and, in turn, the variables in their texts; a variable may also be written in capitals."""
        texts = {
            name: entry.text for block in _VARIABLES for name, entry in self.tree.get(*block).mapping.items()
        }
        found: set[str] = set()
        todo = list(names)
        while todo:
            name = todo.pop()
            for known in (known for known in texts if name in (known, known.upper()) and known not in found):
                found.add(known)
                todo += [token.name for token in find_tokens(texts[known])]
        return frozenset(found)

    def _check_values(self, path: Path, entry: Entry) -> None:
        """Check that every MERLIN_VALUE_NAME in a script belongs to exactly one column."""
        for variable in sorted(mentioned_values(entry.text)):
            labels = [label for label in self.names.columns if value_variable(label) == variable]
            if len(labels) > 1:
                self.findings.error(
                    entry.place,
                    f"{variable} would be the value of {' and of '.join(labels)}",
                    text=variable,
                    hint="rename one of these columns",
                    code="token",
                )
            elif not labels and path[0] == "study":
                hint = did_you_mean(variable, map(value_variable, self.names.columns))
                self._warn(entry.place, f"{variable} is the value of no column", variable, hint)

    def _suggest(self, name: str, cutoff: float = 0.6) -> str:
        known = self.names.defined
        if name.endswith(".workspace"):
            known = frozenset(word for word in known if word.endswith(".workspace"))
        hint = did_you_mean(name, sorted(known), cutoff=cutoff)
        return hint.replace("'", "$(", 1).replace("'", ")", 1) if hint else ""

    def _is_shells(self, token: Token, place: Place) -> bool:
        if not is_shell_substitution(token.name) or self._is_slip(token.name):
            return False
        hint = self._suggest(token.name, cutoff=0.8)
        is_unknown = _WORD.fullmatch(token.name) and not shutil.which(token.name)
        if is_unknown and (hint or token.name in self.made):
            message = f"$({token.name}) is left to the shell, which knows no such command"
            self._warn(place, message, f"$({token.name})", hint)
        return True

    def _is_slip(self, name: str) -> bool:
        """Is it `step.worksapce` or `PARAM.labl`? No command has such a name."""
        owner, dot, suffix = name.rpartition(".")
        if not dot or shutil.which(name):
            return False
        if owner in self.names.graph.steps:
            return True
        return owner in self.names.parameters and suffix.isalpha()

    def _check_use(self, use: Use, path: Path, entry: Entry, nth: int) -> None:
        name = use.token.name
        if name in SAMPLE_TOKENS and not self.names.has_samples:
            self.findings.error(
                token_place(self.source, entry, name, nth),
                f"$({name}) needs samples, and the spec has none",
                text=f"$({name})",
                hint="add a block merlin.samples",
                code="token",
            )
        if path[0] != "study":
            return
        if path[-1] not in SCRIPT_KEYS and name in sample_names(self.names.columns):
            self.findings.error(
                token_place(self.source, entry, name, nth),
                f"$({name}) differs from sample to sample and can be used in cmd and restart only",
                text=f"$({name})",
                hint="a parameter may be used here",
                code="token",
            )
        if not name.endswith(".workspace"):
            return
        used = name.removesuffix(".workspace")
        step_name = self.names.expansion.tree.get(*path[:2], "name").text
        if used in (step_name, "") or used not in self.names.graph.steps:
            return
        place = token_place(self.source, entry, name, nth)
        if used not in self.names.graph.ancestors(step_name):
            self.findings.warning(
                place,
                f"step {step_name!r} uses $({name}), but does not wait for {used!r}",
                text=f"$({name})",
                hint=f"add {used!r} to depends",
                code="no-dependency",
            )
        elif used in self.names.per_sample and path[-1] in SCRIPT_KEYS and use.quoting != "comment":
            self._check_place(step_name, used, entry.text[use.token.end :], place)

    def _check_place(self, step: str, used: str, rest: str, place: Place) -> None:
        """Warn about $(STEP.workspace)/FILE of a step per sample, each of which has a directory of its own."""
        name = f"{used}.workspace"
        file = _FILE.match(rest)
        if file is None:
            return
        graph, path = self.names.graph, f"$({name}){file[0]}"
        written = re.compile(rf">\s*[\"']?{re.escape(path)}")
        if path in graph.scripts(used) or any(written.search(graph.scripts(other)) for other in graph.steps):
            return
        if step in self.names.per_sample:
            hint = f"did you mean $({name})/$(MERLIN_SAMPLE_PATH){file[0]}?"
        else:
            hint = f"all of them are $({name})/$(MERLIN_GLOB_PATH){file[0]}"
        message = f"each sample of {used!r} has a directory of its own, and {path} is in none of them"
        self._warn(place, message, f"$({name})", hint)


def _is_script(path: Path) -> bool:
    """Return whether a value is a script: a command, or the lines that are put before it."""
    return path[-1] in SCRIPT_KEYS or path[:2] == ("env", "sources")


def _as_text(use: Use) -> str:
    r"""How to write the text $(NAME) in a script: `\$(` alone is a syntax error outside of quotes."""
    escaped = f"\\$({use.token.name})"
    return f'"{escaped}"' if use.quoting == "plain" else escaped
