"""The text of the script: constants of a run, then code that is the same for every run of a model.

The code is the file `train_lbann.py.in`, in parts that begin with a line "#: <name>".
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pprint import pformat
from typing import Any

MODELS = ("regressor", "icf_autoencoder", "icf_surrogate")  # the parts with their losses are called so


def script_text(title: str, name: str, model: str, constants: Mapping[str, Any]) -> str:
    """The complete script; `constants` become its upper-case names."""
    text = (files(__package__) / "train_lbann.py.in").read_text(encoding="utf-8")
    parts = dict(part.split("\n", 1) for part in ("\n" + text).split("\n#: ")[1:])
    lines = [f"{key} = {pformat(value, width=100, sort_dicts=False)}\n" for key, value in constants.items()]
    head = parts["head"].format(title=title, name=name)
    return "\n".join((head + "\n" + "".join(lines), parts["layers"], parts[model], parts["run"]))
