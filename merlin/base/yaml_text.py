"""Plain values as YAML for people: keys in their order, lists of scalars on one line, texts as they were typed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import yaml

_UNSAFE = r"[^\n\t\x20-\x7e\xa0-\u2027\u202a-\ud7ff]"  # compiled when it is needed: 5 ms


def _keeps_in_a_block(text: str) -> bool:
    """May the text be a block scalar? Not with lines of blanks alone, nor with an indented first line."""
    lines = text.split("\n")
    if len(lines) < 2 or lines[0].startswith((" ", "\t")):
        return False
    has_blank = any(line and not line.strip(" \t") for line in lines)
    return not has_blank and not re.search(_UNSAFE, text)


class _Dumper(yaml.SafeDumper):
    """Block style, multi-line texts as they were typed, no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def analyze_scalar(self, scalar: str) -> Any:
        analysis = super().analyze_scalar(scalar)
        if _keeps_in_a_block(scalar):
            analysis.allow_block = True  # PyYAML would not allow tabs, or blanks before a line's end
        return analysis

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


class _ShortDumper(_Dumper):
    """Mappings that hold no mappings stand on one line, too."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    short = all(not isinstance(item, dict | list) and "\n" not in str(item) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


def _represent_short(dumper: yaml.SafeDumper, items: dict[str, Any]) -> yaml.Node:
    short = not any(isinstance(item, dict) for item in items.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", items, flow_style=short)


_Dumper.add_representer(str, _represent_text)
_Dumper.add_representer(list, _represent_list)
_ShortDumper.add_representer(dict, _represent_short)


def yaml_text(data: Mapping[str, Any], *, short_mappings: bool = False) -> str:
    """The text of a mapping; with `short_mappings` the innermost ones stand on one line."""
    dumper = _ShortDumper if short_mappings else _Dumper
    return yaml.dump(dict(data), Dumper=dumper, sort_keys=False, allow_unicode=True, width=10**6)
