"""Plain values as YAML for people: keys in their order, lists of scalars on one line."""

from __future__ import annotations

from typing import Any

import yaml


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


class _ShortDumper(_Dumper):
    """Mappings that hold no mappings stand on one line, too."""


def _represent_list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    short = not any(isinstance(item, dict | list) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=short)


def _represent_short(dumper: yaml.SafeDumper, items: dict[str, Any]) -> yaml.Node:
    short = not any(isinstance(item, dict) for item in items.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", items, flow_style=short)


_Dumper.add_representer(list, _represent_list)
_ShortDumper.add_representer(dict, _represent_short)


def yaml_text(data: dict[str, Any], *, short_mappings: bool = False) -> str:
    """The text of a mapping; with `short_mappings` the innermost ones stand on one line."""
    dumper = _ShortDumper if short_mappings else _Dumper
    return yaml.dump(
        data, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False, width=10**6
    )
