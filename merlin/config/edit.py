"""Writing app.yaml: the template, and changes to a block that leave comments and other lines alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from merlin.base.document.findings import Findings, SourceText
from merlin.base.document.scalars import plain_scalar, typed
from merlin.base.document.tree import Entry, parse
from merlin.config.model import DEFAULT_PORTS, KIND_OF_NAME
from merlin.config.places import POINTER_FILE, pointer_path
from merlin.config.private_file import make_parent, write_private
from merlin.errors import ConfigError, command_line

_PLAIN = re.compile(r"(~/|[A-Za-z0-9_./])[A-Za-z0-9_./+@-]*")

_REDIS_NOTE = "# Redis over TLS; redis without encryption, redis+socket for a socket"
_RABBITMQ_NOTE = "# RabbitMQ over TLS; amqp without encryption"
_NOTE = re.compile(rf"(\bname: (\S+)\s+)(?:{re.escape(_REDIS_NOTE)}|{re.escape(_RABBITMQ_NOTE)})")
_REDIS = f"""\
    name: rediss                    {_REDIS_NOTE}
    password: <path to a file with the password>
    server: <host name>
    port: 6379
    db_num: 0
    cert_reqs: required             # none trusts any certificate, and with it anybody on the way
    # ca_certs: <path>              # if your site has its own authority
"""
_RABBITMQ = f"""\
    name: rabbitmq                  {_RABBITMQ_NOTE}
    username: <user name>
    password: <path to a file with the password>
    server: <host name>
    port: 5671
    vhost: <virtual host, often your user name>
    cert_reqs: required             # none trusts any certificate, and with it anybody on the way
    # ca_certs: <path>              # if your site has its own authority
"""
_TEMPLATE = """\
# Where Merlin finds its servers. Fill in what stands in < >, then: merlin config check
# Keep passwords in files of their own that only you can read (chmod 600).

# carries the messages: Redis or RabbitMQ
broker:
{broker}
# holds the progress of studies: always Redis; with a Redis broker it may be the same one
results_backend:
{backend}
celery:
    overrides:                      # settings of Celery, for example worker_prefetch_multiplier: 1
"""


def template(broker: str) -> str:
    """The text of a new app.yaml; `broker` is redis or rabbitmq."""
    return _TEMPLATE.format(broker=_RABBITMQ if broker == "rabbitmq" else _REDIS, backend=_REDIS)


def use(path: Path, env: Mapping[str, str], *, beside: bool = False) -> Path:
    """Make `path` the configuration that is used from now on; returns the file that says so.

    With `beside`, that file is written beside `path`, where nobody reads it (upstream's `config --test`).
    """
    pointer = path.parent / POINTER_FILE if beside else pointer_path(env)
    make_parent(pointer)
    write_private(pointer, f"{path}\n")
    return pointer


def update_block(path: Path, block: str, values: Mapping[str, str | int]) -> None:
    """Set keys of a block in an app.yaml; everything else stays as it is written.

    If `name` makes it another kind of server, what only fitted the old one goes: its port, vhost and db_num.
    Raises ConfigError if the file cannot be read, or the block is not written as one key per line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist; make it: {command_line('config', 'create', '-o', path)}"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    old = _tree(text, path).get(block)
    for key, value in values.items():
        text = _set(text, block, key, value, path)
    if "name" in values:
        for key, new in _for_kind(str(values["name"]), old).items():
            if key not in values:
                text = _without(text, block, key, path) if new is None else _set(text, block, key, new, path)
        text = _NOTE.sub(lambda match: match[1] + _note(match[2]), text)
    write_private(path, text)


def _note(name: str) -> str:
    return _REDIS_NOTE if name.startswith("redis") else _RABBITMQ_NOTE


def _for_kind(name: str, old: Entry) -> dict[str, int | None]:
    """What changes with the kind of server in a block: the port that was the old one's, and keys that go (None)."""
    before = old.get("name").text.lower()
    if not before or (was := KIND_OF_NAME.get(before)) == (kind := KIND_OF_NAME[name]):
        return {}
    changes: dict[str, int | None] = {}
    is_other = before.startswith("redis") != name.startswith("redis")
    if is_other or old.get("port").text == str(DEFAULT_PORTS.get(was or "")):
        changes["port"] = DEFAULT_PORTS[kind]
    if is_other:
        changes |= {"vhost": None, "db_num": None}
    return {key: new for key, new in changes.items() if key in old.mapping}


def _without(text: str, block: str, key: str, path: Path) -> str:
    """The text without the lines of a key, if they stand in the block (not in one that it merges)."""
    entry = _tree(text, path).get(block)
    item = entry.get(key)
    if not entry.start <= item.start < entry.end or isinstance(item.content, dict | list):
        return text
    lines = text.split("\n")
    del lines[item.key_place[0] - 1 : text[: item.end].rstrip().count("\n") + 1]
    return "\n".join(lines)


def _set(text: str, block: str, key: str, value: str | int, path: Path) -> str:
    tree = _tree(text, path)
    written = _scalar(value)
    if block not in tree.mapping:
        return f"{text.rstrip()}\n\n{block}:\n    {key}: {written}\n"
    entry = tree.get(block)
    if entry.is_null:  # `broker:` and nothing below it
        return _insert_after(text, entry.key_place[0], f"    {key}: {written}")
    keys = _own(text, entry)
    if not keys or text[entry.start] == "{":
        raise ConfigError(f"{path}:{entry.place[0]}: write {block} with one key per line, then try again")
    if key not in keys:
        first = next(iter(keys.values())).key_place
        return _insert_after(text, _last_line(text, entry), " " * (first[1] - 1) + f"{key}: {written}")
    old = keys[key]
    if isinstance(old.content, dict | list) or not entry.start <= old.start < entry.end:
        raise ConfigError(
            f"{path}:{old.place[0]}: {block}.{key} is not a single value of its own; change it by hand"
        )
    head, tail = text[: old.start], text[old.end :]
    return head + ("" if head.endswith((" ", "\n")) else " ") + written + tail


def _own(text: str, entry: Entry) -> dict[str, Entry]:
    """The keys that stand in a block itself, not in one that it merges."""
    end = SourceText("", text).place(entry.end)
    return {key: item for key, item in entry.mapping.items() if entry.place <= item.key_place < end}


def _tree(text: str, path: Path) -> Entry:
    findings = Findings(str(path))
    tree = parse(
        SourceText(findings.file, text), findings, what="configuration", blocks="broker, …", needs="a broker"
    )
    if tree is None or findings.failed:
        raise ConfigError(findings.sorted())
    return tree


def _last_line(text: str, entry: Entry) -> int:
    """The number of the last line of a block that holds one of its values."""
    ends = [
        item.end for _, item in entry.walk() if item is not entry and isinstance(item.content, str | None)
    ]
    return text.count("\n", 0, max(ends)) + 1


def _insert_after(text: str, line: int, new: str) -> str:
    lines = text.split("\n")
    return "\n".join([*lines[:line], new, *lines[line:]])


def _scalar(value: str | int) -> str:
    """A value as YAML reads it back unchanged."""
    text = str(value)
    is_plain = bool(_PLAIN.fullmatch(text)) and typed(plain_scalar(text)) == value
    return text if is_plain else json.dumps(text, ensure_ascii=False)
