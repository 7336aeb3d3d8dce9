"""What an aggregate step collects, from its block in the spec and the step instances that it collects from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from merlin.base.document.scalars import Problem
from merlin.plan.fields import plan_fields
from merlin.plan.plan import Aggregate, PlannedField, StepInstance, StepKind
from merlin.spec.expression import CONSTANTS, ExpressionError, parse

if TYPE_CHECKING:
    from merlin.spec.data_set_blocks import AggregateBlock


def plan_aggregate(
    block: AggregateBlock,
    fill: Callable[[str], str],
    sources: Sequence[StepInstance],
    labels: Collection[str],
) -> Aggregate:
    """`fill` fills in what is known of $(NAME); `labels` are those of the samples.

    Raises Problem if there is nothing to collect from, or if an expression names what its samples do not have.
    """
    if not sources or any(source.kind is StepKind.AGGREGATE for source in sources):
        hint = "name a cmd or function step in depends, and in from if there are several"
        raise Problem("has no step to collect from", hint)
    fields = plan_fields(block.fields, fill)
    _check_names(block, fields, sources[0], labels)
    return Aggregate(
        sources=tuple(source.id for source in sources),
        fields=fields,
        samples_per_shard=block.samples_per_shard,
        compression=block.compression,
        shuffle=block.shuffle,
        level=block.level,
        valid=tuple(fill(text) for text in block.valid),
        cleanup=block.cleanup,
        splits=tuple(block.splits.items()),
        seed=block.seed,
    )


def _check_names(
    block: AggregateBlock, fields: Sequence[PlannedField], source: StepInstance, labels: Collection[str]
) -> None:
    """Expressions may name what each sample has: a parameter that its step does not use is not there."""
    known = {one.name for one in fields} | source.params.keys() | CONSTANTS.keys()
    if source.per_sample:
        known |= set(labels)
    for text in (*block.valid, *(one.expression for one in fields if one.expression)):
        for name in _names(text):
            if name not in known:
                message = f"uses {name!r} in {text!r}, and the samples of {source.step} have no such value"
                raise Problem(message, f"let {source.step} use $({name})")


def _names(text: str) -> tuple[str, ...]:
    try:
        return parse(text).names
    except ExpressionError as error:  # with a parameter's value in it
        raise Problem(f"cannot read {text!r}: {error}", error.hint) from error
