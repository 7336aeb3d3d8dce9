"""JSON Schema of specs for editors, generated from the model."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from merlin.spec.defaults import KINDS
from merlin.spec.model import Document
from merlin.spec.notify_words import CHANNELS

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """The schema, draft 2020-12. Blocks and keys without a value are allowed, as in a spec."""
    schema = editor_schema(
        Document, "https://merlin-ensembles/spec.schema.json", "Merlin study specification"
    )
    _refine(schema["$defs"])
    _loosen(schema)
    return schema


def editor_schema(root: type[BaseModel], address: str, title: str) -> dict[str, Any]:
    """The schema of any document that is read in the same way as a spec."""
    schema = root.model_json_schema(by_alias=True, mode="validation")
    for block in (schema, *schema.get("$defs", {}).values()):
        _allow_null(block)
    _loosen(schema)
    return {"$schema": DIALECT, "$id": address, **schema, "title": title}


def _allow_null(block: dict[str, Any]) -> None:
    """`env:` alone means no env block, and `key:` alone no key."""
    required = set(block.get("required", ()))
    for key, value in block.get("properties", {}).items():
        if key in required or value == {} or _accepts_null(value):
            continue
        notes = {word: value.pop(word) for word in ("description", "default", "title") if word in value}
        block["properties"][key] = {"anyOf": [value, {"type": "null"}], **notes}


def _accepts_null(value: dict[str, Any]) -> bool:
    if not set(value) & {"type", "anyOf", "$ref", "enum", "const", "allOf"}:
        return True  # anything goes
    return any(option.get("type") == "null" for option in value.get("anyOf", ()))


def _refine(definitions: dict[str, Any]) -> None:
    """Add second spellings of keys, short forms of blocks, and rules that the model's types cannot express."""
    run = definitions["Run"]["properties"]
    for block in ("FieldBlock", "Values"):
        properties = definitions[block]["properties"]
        properties["path"] = properties["column"] = properties["key"]
    run["launch distribution"] = run["launch_distribution"]
    run["exclusive"]["anyOf"] = [{"type": "boolean"}, {"type": "string"}, *run["exclusive"]["anyOf"]]
    for block, key in (("Parameter", "values"), ("Samples", "column_labels")):
        value = definitions[block]["properties"][key]
        text = value.pop("description")
        definitions[block]["properties"][key] = {"anyOf": [value, {"type": "string"}], "description": text}
    # the same is true of `shell`, except for the study's shell, which the schema does not know
    of_cmd = {key: {"type": "null"} for key in ("restart", "timeout")}
    definitions["Notify"]["oneOf"] = [{"required": [channel]} for channel in CHANNELS]
    definitions["Run"]["oneOf"] = [
        {"required": [kind], **({} if kind == "cmd" else {"properties": of_cmd})} for kind in KINDS
    ]


def _loosen(node: Any) -> None:
    """Allow to write a list as one text (also as one variable), and to leave a named block empty."""
    if isinstance(node, list):
        for item in node:
            _loosen(item)
    elif isinstance(node, dict):
        named = node.get("additionalProperties")
        if isinstance(named, dict) and not _accepts_null(named):
            node["additionalProperties"] = {"anyOf": [named, {"type": "null"}]}
        for key, value in node.items():
            kinds = [str(option.get("type")) for option in value] if key == "anyOf" else []
            if "array" in kinds and not any("string" in kind for kind in kinds):
                value.append({"type": "string"})
            _loosen(value)
