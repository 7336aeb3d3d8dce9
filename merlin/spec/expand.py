"""Filling user variables into a tree: values, keys and commands, in every block."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import yaml
from msgspec import Struct
from msgspec.structs import replace

from merlin.base.document.findings import Findings, did_you_mean
from merlin.base.document.scalars import Scalar, plain_scalar, typed, yaml_number
from merlin.base.document.tokens import substitute
from merlin.base.document.tree import SCRIPT_KEYS, Entry, compose, to_data
from merlin.spec.variables import OUTPUT_PATH, RESERVED, Resolved, expand_home, resolve_variables

# `$` and `~` in these belong to the shell or to the regular expression.
LITERAL_KEYS = SCRIPT_KEYS | {"regex"}
# What these take from the environment may be secret, so it is filled in when they are used, and not in a file.
LATE_KEYS = frozenset({"webhook", "mail", "apprise"})
_BLOCKS = ("variables", "labels")
_PYTHON_FLOAT = re.compile(r"-?\de[+-]\d\d+")  # such as 1e-05


class Expansion(Struct, frozen=True):
    """A tree with its user variables filled in, and their values by name."""

    tree: Entry
    values: dict[str, str]  # every token name, dependencies and capitalised spellings included
    variables: dict[str, Scalar]  # by the name in the spec, with YAML types


def override(tree: Entry, overrides: Mapping[str, str], text: str, findings: Findings) -> Entry:
    """The tree with the command line's variables put into env; a name the spec never mentions is an error."""
    if not overrides:
        return tree
    env = dict(tree.get("env").mapping)
    blocks = {name: dict(env[name].mapping) if name in env else {} for name in _BLOCKS}
    parameters = tree.get("global.parameters").mapping
    for name, value in overrides.items():
        if name in RESERVED:
            findings.command_line(
                f"--vars cannot set the reserved variable {name}", text=name, code="reserved"
            )
        elif name in parameters:
            message = f"--vars sets variables, and {name} is a parameter"
            hint = f"let its values be a variable, e.g. values: $({name}_VALUES)"
            findings.command_line(message, text=name, hint=hint, code="not-a-variable")
        elif name != OUTPUT_PATH and not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", text):
            known = [*blocks["variables"], *blocks["labels"]]
            message = f"--vars names {name}, which the spec does not mention"
            hint = did_you_mean(name, known) or (f"its variables are: {', '.join(known)}" if known else "")
            findings.command_line(message, text=name, hint=hint, code="unknown-variable")
        else:
            block = blocks["labels" if name in blocks["labels"] else "variables"]
            old = block.get(name, Entry(None))
            block[name] = Entry(str(value), old.place, old.key_place, plain=True, verbatim=True)
    for block_name, content in blocks.items():
        if content:
            old = env.get(block_name, Entry(None))
            env[block_name] = replace(old, content=content)
    return with_block(tree, "env", env)


def with_block(tree: Entry, name: str, content: dict[str, Entry]) -> Entry:
    """The tree with another content of one of its blocks."""
    return replace(tree, content={**tree.mapping, name: replace(tree.get(name), content=content)})


def expand(tree: Entry, findings: Findings) -> Expansion:
    """Fill the variables of env into the complete tree."""
    raw, entries = _raw_variables(tree, findings)
    taken = {*RESERVED, *tree.get("global.parameters").mapping, *column_labels(tree)}
    resolved = _resolve(raw, taken)
    for cycle in resolved.cycles:
        entry = entries.get(cycle[0], tree)
        message = f"variable {cycle[0]} refers to itself: {' -> '.join(cycle)}"
        hint = "give one of them a value of its own"
        findings.error(entry.place, message, text=entry.text, hint=hint, code="variable-cycle")
    known = resolved.values
    if is_of_maestro(tree):  # $(OUTPUT_PATH) stays: it is not what the variable says
        others = {name: raw[name] for name in raw if name != OUTPUT_PATH}
        known = _resolve(others, taken).values
    expanded = _expand(tree, known, findings)
    values_of_env = {**resolved.values, **known}
    if not resolved.cycles:
        expanded = _write_back(expanded, values_of_env)
    variables = {
        name: typed(plain_scalar(value) or value) if entries[name].plain else value
        for name, value in values_of_env.items()
        if name in entries
    }
    return Expansion(expanded, known, variables)


def _resolve(raw: Mapping[str, str], taken: Collection[str]) -> Resolved:
    """The variables, and each by its name in capitals too, as upstream knows them, where nothing else has that name."""
    capitals: dict[str, str] = {}
    for name in raw:
        if name.upper() not in taken and name.upper() not in raw:
            capitals.setdefault(name.upper(), name)
    others = dict(capitals)
    while True:
        resolved = resolve_variables({**raw, **{upper: f"$({name})" for upper, name in others.items()}})
        circular = others.keys() & {name for cycle in resolved.cycles for name in cycle}
        if not circular:
            break
        for upper in circular:  # nobody wrote that variable: in `date: $(DATE)` it is text
            del others[upper]
    values = {upper: resolved.values[name] for upper, name in capitals.items()}
    return Resolved({**resolved.values, **values}, resolved.cycles)


def is_of_maestro(tree: Entry) -> bool:
    """True if the spec has no block `merlin`: then $(OUTPUT_PATH) is the workspace, not the directory it is made in."""
    return "merlin" not in tree.mapping


def column_labels(tree: Entry) -> list[str]:
    return [item.text for item in tree.get("merlin", "samples", "column_labels").items]


def _raw_variables(tree: Entry, findings: Findings) -> tuple[dict[str, str], dict[str, Entry]]:
    raw: dict[str, str] = {}
    entries: dict[str, Entry] = {}
    for block in _BLOCKS:
        for name, entry in tree.get("env", block).mapping.items():
            if name in RESERVED:
                findings.error(
                    entry.key_place, f"{name} is reserved and cannot be assigned", text=name, code="reserved"
                )
                continue
            if name in entries:
                message = f"{name} is both a variable and a label"
                hint = f"the variable is on line {entries[name].key_place[0]}; rename one of them"
                findings.error(entry.key_place, message, text=name, hint=hint, code="name-clash")
                continue
            if entry.is_null:
                findings.warning(entry.key_place, f"variable {name} is empty", text=name, code="empty")
            raw[name] = _as_text(entry)
            entries[name] = entry
    _check_dependencies(tree, entries, findings)
    return raw, entries


def _as_text(entry: Entry) -> str:
    """What a variable becomes in a command: numbers as Python prints them, everything else as written."""
    data = typed(to_data(entry))
    if entry.verbatim or isinstance(data, bool):
        return entry.text
    return "" if data is None else str(data)


def dependency_entries(tree: Entry) -> list[tuple[str, Entry]]:
    """Every dependency by name: a token for its absolute path, which is known once there is a study."""
    return [
        (item.get("name").text, item)
        for kind in ("paths", "git")
        for item in tree.get("env", "dependencies", kind).items
        if item.get("name").text
    ]


def _check_dependencies(tree: Entry, variables: Mapping[str, Entry], findings: Findings) -> None:
    """Every dependency has a name of its own."""
    taken = {name: ("a variable", entry.key_place) for name, entry in variables.items()}
    for name, item in dependency_entries(tree):
        place = item.get("name").place
        if name in RESERVED:
            findings.error(place, f"{name} is reserved and cannot be assigned", text=name, code="reserved")
        elif name in taken:
            what, (line, _) = taken[name]
            message = (
                f"{name} is both {what} and a dependency" if what else f"two dependencies are called {name}"
            )
            hint = f"the {what.removeprefix('a ') or 'first one'} is on line {line}; rename one of them"
            findings.error(place, message, text=name, hint=hint, code="name-clash")
        taken.setdefault(name, ("", place))


def _write_back(tree: Entry, values: Mapping[str, str]) -> Entry:
    """Let the env block of the expanded tree show the values of variables."""
    env = dict(tree.get("env").mapping)
    for block in _BLOCKS:
        if block in env and env[block].mapping:
            content = {
                name: replace(entry, content=values[name])
                if name in values and isinstance(entry.content, str)
                else entry
                for name, entry in env[block].mapping.items()
            }
            env[block] = replace(env[block], content=content)
    return with_block(tree, "env", env) if env else tree


def _expand(entry: Entry, values: Mapping[str, str], findings: Findings, key: str = "") -> Entry:
    content = entry.content
    if isinstance(content, dict):
        return replace(entry, content=_expand_mapping(content, values, findings))
    if isinstance(content, list):
        late = key if key in LATE_KEYS else ""
        return replace(entry, content=[_expand(item, values, findings, late) for item in content])
    if not isinstance(content, str):
        return entry
    text = substitute(content, values)
    if key not in LITERAL_KEYS | LATE_KEYS:
        text = expand_home(text)
    if text == content:
        return entry
    if entry.plain and key not in LITERAL_KEYS and text.startswith("[") and text.endswith("]"):
        return _as_list(text, entry)
    return replace(entry, content=text)


def _expand_mapping(
    content: dict[str, Entry], values: Mapping[str, str], findings: Findings
) -> dict[str, Entry]:
    out: dict[str, Entry] = {}
    for key, item in content.items():
        name = substitute(key, values)
        if name in out:
            message = f"key {key!r} becomes {name!r}, which is there already"
            findings.error(item.key_place, message, text=key, code="duplicate-key")
        out[name] = _expand(item, values, findings, name)
    return out


def _as_list(text: str, entry: Entry) -> Entry:
    """A variable that holds a list, used alone as a value."""
    try:
        node = compose(text)
    except yaml.YAMLError:
        return replace(entry, content=text)
    return _list_entry(node, entry) if isinstance(node, yaml.SequenceNode) else replace(entry, content=text)


def _list_entry(node: yaml.Node, entry: Entry) -> Entry:
    if isinstance(node, yaml.SequenceNode):
        return replace(entry, content=[_list_entry(item, entry) for item in node.value], plain=False)
    text = node.value if isinstance(node, yaml.ScalarNode) else ""
    if _PYTHON_FLOAT.fullmatch(text):  # which YAML would take for a text
        text = yaml_number(float(text))
    return replace(entry, content=text, plain=not getattr(node, "style", ""))
