"""The block `aggregate` of a step: what it collects into a data set, field by field."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from pydantic import AliasChoices, Field
from pydantic_core import CoreSchema, core_schema

from merlin.base.codecs.shuffles import SHUFFLES
from merlin.base.compression import CODECS
from merlin.base.compression import NAMES as CODEC_NAMES
from merlin.base.document.field_types import (
    Block,
    Count,
    Flag,
    Number,
    Positive,
    Shape,
    Text,
    TextList,
    optional,
)
from merlin.base.document.findings import allowed
from merlin.base.document.scalars import Problem, shown
from merlin.base.kinds import KINDS, ROLES


class OneOf:
    """A text that is one of the words of a registry."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"enum": list(self.words), "type": "string"}

    def _checked(self, value: Any) -> str:
        if value not in self.words:
            known = [word for word in self.words if word]
            raise Problem(f"{shown(value)} is not allowed", allowed(str(value), known, "allowed"))
        return self.words[self.words.index(value)]


Codec: TypeAlias = Annotated[str, OneOf(*CODEC_NAMES)]
CodecOrDefault: TypeAlias = Annotated[str, OneOf("", *CODEC_NAMES)]
Shuffle: TypeAlias = Annotated[str, OneOf("", *SHUFFLES)]
FieldKind: TypeAlias = Annotated[str, OneOf(*KINDS)]
GraphRole: TypeAlias = Annotated[str, OneOf(*ROLES)]


class Values(Block):
    """Where the values of a field come from, and how they are kept."""

    dtype: Text = optional("NumPy type, little-endian: float64, float32, int32, …", "float64")
    shape: Shape = optional(
        'Shape of one sample, e.g. [64, 64, 4]; none for a scalar; "*" first: any number of items.', ()
    )
    output: Text | None = optional("Name in the function's result; default: the field's name.")
    file: Text | None = optional("Glob inside the task's directory, e.g. out.json.")
    key: Text | None = optional(
        "Dotted path in JSON, member of .npz, path in HDF5, column of CSV. Or: path, column.",
        validation_alias=AliasChoices("key", "path", "column"),
    )
    regex: Text | None = optional("First group is the value, on text files.")
    expression: Text | None = optional(
        "Derived from other fields, inputs and parameters, e.g. log10(energy)."
    )
    finite: Flag = optional("NaN or infinity fails the sample.", True)
    units: Text = optional("Units, kept as an attribute.", "")
    description: Text = optional("Kept as an attribute.", "")
    compression: CodecOrDefault = optional("Default: the aggregate's.", "")
    shuffle: Shuffle = optional("What is done to bytes before compression; default: the aggregate's.", "")
    level: Count | None = optional("Level of compression; default: the aggregate's.")
    keep_bits: Positive | None = optional("Round floats to so many bits of mantissa, to compress better.")
    axes: TextList = optional("Names of the sample's axes, e.g. [y, x, channel].", ())


class FieldBlock(Values):
    """One field of a data set."""

    kind: FieldKind = optional("What one sample of it is.", "scalar")
    layout: Text = optional("Of an image or volume, a letter per axis of its shape: hwc, chw, dhwc, …", "")
    channels: TextList = optional("Names of the channels, along the axis c.", ())
    members: dict[GraphRole, Values] = Field(
        default_factory=dict, description=f"Of a graph: {', '.join(ROLES)}."
    )


class AggregateBlock(Block):
    """Collects the outputs of another step into shards."""

    from_: Text | None = optional("Step to collect; default: the only one in depends.", alias="from")
    fields: dict[str, FieldBlock] = Field(description="What to collect, by field name.")
    samples_per_shard: Positive = optional("Rows of one shard file.", 1000)
    valid: TextList = optional("Expressions; a sample for which one is not true is left out as filtered.", ())
    compression: Codec = optional("Of all fields; uncompressed data can be memory-mapped.", "none")
    shuffle: Shuffle = optional("What is done to bytes before compression; default: byte.", "")
    level: Count | None = optional(
        "Level of compression; default: "
        + ", ".join(f"{codec.name} {codec.usual_level}" for codec in CODECS.values())
        + "."
    )
    splits: dict[str, Number] = Field(
        default_factory=lambda: {"train": 0.8, "validation": 0.1, "test": 0.1},
        description="Fractions of the samples; they sum to 1.",
    )
    seed: Count = optional("Seed of the split; the same sample always falls into the same split.", 0)
    cleanup: Flag = optional("Remove the samples' files once the shard that holds them is verified.", False)
