"""Every `$(NAME)` of a spec: does something define it, or is it the shell's?"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from functools import cached_property

from merlin.spec.checks.steps import StepGraph
from merlin.spec.expand import Expansion
from merlin.spec.findings import Findings, Place, Source, did_you_mean
from merlin.spec.tokens import Token, find_tokens, is_shell_substitution
from merlin.spec.tree import SCRIPT_KEYS, Entry, Path, token_place
from merlin.spec.variables import OUTPUT_PATH, RESERVED, SAMPLE_TOKENS

_WORD = re.compile(r"\w+")
_AWK_NAMES = frozenset({"NF", "NR", "FNR"})


def check_tokens(
    source: Source, tree: Entry, expansion: Expansion, graph: StepGraph, findings: Findings
) -> None:
    """Report tokens without a meaning, in keys and values of every block but `user`."""
    names = Names(expansion, graph)
    checker = _Checker(source, names, findings)
    for path, entry in tree.walk():
        if path[:1] == ("user",):
            continue
        for key, item in entry.mapping.items():
            for token in find_tokens(key):
                if token.name not in names.defined:
                    checker.undefined(token, item.key_place)
        if isinstance(entry.content, str):
            checker.check_text(path, entry)


@dataclass(frozen=True)
class Names:
    """Everything that a token may name in one spec."""

    expansion: Expansion
    graph: StepGraph

    @cached_property
    def parameters(self) -> list[str]:
        return list(self.expansion.tree.get("global.parameters").mapping)

    @cached_property
    def columns(self) -> list[str]:
        return [item.text for item in self.expansion.tree.get("merlin", "samples", "column_labels").items]

    @cached_property
    def has_samples(self) -> bool:
        return bool(self.expansion.tree.get("merlin", "samples").mapping)

    @cached_property
    def defined(self) -> frozenset[str]:
        return frozenset(
            {
                *self.expansion.values,
                *self.parameters,
                *(f"{name}.{suffix}" for name in self.parameters for suffix in ("label", "name")),
                *self.columns,
                *(f"{step}.workspace" for step in self.graph.steps),
                *RESERVED,
                OUTPUT_PATH,
            }
        )


@dataclass(frozen=True)
class _Checker:
    source: Source
    names: Names
    findings: Findings

    def check_text(self, path: Path, entry: Entry) -> None:
        """Every token of one value; `$(date)` is the shell's where a shell will see it."""
        text = entry.text
        is_script = path[-1] in SCRIPT_KEYS
        seen: dict[str, int] = {}
        for token in find_tokens(text):
            nth = seen[token.name] = seen.get(token.name, -1) + 1
            if token.name in self.names.defined:
                self._check_use(token, path, entry, nth)
                continue
            if is_script and (token.escaped or _is_comment(text, token) or _is_awk(text, token)):
                continue
            place = token_place(self.source, entry, token.name, nth)
            if (is_script or path[:2] in (("env", "variables"), ("env", "labels"))) and self._is_shells(
                token, place
            ):
                continue
            self.undefined(token, place, in_script=is_script)

    def undefined(self, token: Token, place: Place, *, in_script: bool = False) -> None:
        """Nothing defines this token."""
        name = token.name
        message = f"$({name}) is not defined"
        if name.endswith(".workspace"):
            message = f"$({name}) names the step {name.removesuffix('.workspace')!r}, which does not exist"
        hint = self._suggest(name)
        if in_script and shutil.which(name):
            self.findings.warning(
                place,
                f"{message}; the shell will run the command {name}",
                text=token.name,
                hint=hint,
                code="token",
            )
            return
        if in_script and not hint:
            hint = f"define it in env.variables or with --vars; for a command of the shell write $( {name} )"
        self.findings.error(
            place, message, text=f"$({name})", hint=hint or "define it in env.variables", code="token"
        )

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
        if hint and _WORD.fullmatch(token.name) and not shutil.which(token.name):
            self.findings.warning(
                place,
                f"$({token.name}) is left to the shell, which knows no such command",
                text=f"$({token.name})",
                hint=hint,
                code="token",
            )
        return True

    def _is_slip(self, name: str) -> bool:
        """Is it `step.worksapce` or `PARAM.labl`? No command is called so."""
        owner, dot, suffix = name.rpartition(".")
        if not dot or shutil.which(name):
            return False
        if owner in self.names.graph.steps:
            return True
        return owner in self.names.parameters and suffix.isalpha()

    def _check_use(self, token: Token, path: Path, entry: Entry, nth: int) -> None:
        name = token.name
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
        if path[-1] not in SCRIPT_KEYS and (name in SAMPLE_TOKENS or name in self.names.columns):
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
        if used not in self.names.graph.ancestors(step_name):
            self.findings.warning(
                token_place(self.source, entry, name, nth),
                f"step {step_name!r} uses $({name}), but does not wait for {used!r}",
                text=f"$({name})",
                hint=f"add {used!r} to depends",
                code="no-dependency",
            )


def _is_comment(text: str, token: Token) -> bool:
    start = text.rfind("\n", 0, token.start) + 1
    return text[start : token.start].lstrip().startswith("#")


def _is_awk(text: str, token: Token) -> bool:
    return token.name in _AWK_NAMES and "awk" in text
