"""Specs written back as YAML: the partial one (overrides, defaults) and the expanded one (all filled in)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

from merlin.base.document.scalars import Plain
from merlin.base.document.tokens import substitute
from merlin.base.document.tree import Entry, to_data
from merlin.spec.defaults import fill
from merlin.spec.expand import is_of_maestro

_ORDER = ("description", "batch", "env", "study", "global.parameters", "merlin", "user")
_CLOCK_KEYS = frozenset({"walltime", "timeout", "retry_delay", "name"})


_UNSAFE = re.compile(r"[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff]")


def _keeps_in_a_block(text: str) -> bool:
    """May the text be a block scalar? Not with lines of blanks alone, nor with an indented first line."""
    lines = text.split("\n")
    blank = any(line and not line.strip(" \t") for line in lines)
    return len(lines) > 1 and not blank and not lines[0].startswith((" ", "\t")) and not _UNSAFE.search(text)


class _Dumper(yaml.SafeDumper):
    """Block style, multi-line texts as they were typed, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def analyze_scalar(self, scalar: str) -> Any:
        analysis = super().analyze_scalar(scalar)
        if _keeps_in_a_block(scalar):
            analysis.allow_block = True  # PyYAML is afraid of tabs and of blanks before a line's end
        return analysis

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    short = all(not isinstance(item, dict | list) and "\n" not in str(item) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)


def dump(
    tree: Entry, values: Mapping[str, str] | None = None, parameters: Mapping[str, Any] | None = None
) -> str:
    """The tree with defaults as YAML; `values` are filled in last, in keys too.

    `parameters` stand in place of the block global.parameters.
    """
    data = fill(to_data(tree))
    if parameters is not None:
        data["global.parameters"] = parameters
    if is_of_maestro(tree):
        del data["merlin"]  # with the block, $(OUTPUT_PATH) would mean something else
    ordered = {key: data[key] for key in _ORDER if key in data}
    ordered.update({key: value for key, value in data.items() if key not in ordered})
    plain = _writable(ordered, values or {})
    return yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def dump_data(data: Mapping[str, Any]) -> str:
    """Plain data as YAML, in its order."""
    return yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)


def _writable(value: Any, values: Mapping[str, str], key: str = "") -> Any:
    if isinstance(value, dict):
        return {substitute(name, values): _writable(item, values, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_writable(item, values) for item in value]
    if isinstance(value, Plain):
        return str.__str__(value) if key in _CLOCK_KEYS else value.typed
    if isinstance(value, str):
        return substitute(value, values)
    return value
