"""The expressions of an aggregate: do they parse, are their names known, do their values fit?"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from merlin.base.document.findings import Findings, Place, SourceText
from merlin.base.document.tokens import TOKEN
from merlin.base.document.tree import Entry
from merlin.base.kinds import ROLES, GraphRole
from merlin.spec.checks.fields import dtype_of, shape_of
from merlin.spec.expression import Expression, ExpressionError, parse
from merlin.spec.expression_types import RANKS, Kind, ValueType, expect_condition, type_of

_ANY = ValueType("any")
_MIXED = {"float": "float64", "int": "int64"}


class ExpressionChecker(Struct):
    """Checks the expressions of one aggregate step over everything that may be named in them."""

    source: SourceText
    findings: Findings
    labels: tuple[str, ...]  # of the samples
    parameters: tuple[str, ...]

    def check(self, aggregate: Entry) -> None:
        """Derived fields in their order of need, then the filters."""
        names: dict[str, ValueType] = dict.fromkeys((*self.parameters, *self.labels), _ANY)
        derived: dict[str, _Derived] = {}
        for field in _fields(aggregate):
            names[field.name] = _type_of_field(field)
            if not field.expression.is_null:
                expression = self._parse(field.expression, f"field {field.name}")
                if expression is not None:
                    derived[field.name] = _Derived(field, expression)
        self._check_circles(derived)
        for one in derived.values():
            self._check_derived(one, names)
        valid = aggregate.get("valid")
        for entry in valid.items:
            expression = self._parse(entry, "valid")
            if expression is not None:
                self._check_condition(expression, entry, names)

    def _check_condition(self, expression: Expression, entry: Entry, names: Mapping[str, ValueType]) -> None:
        try:
            expect_condition(expression, type_of(expression, names))
        except ExpressionError as error:
            self._report(entry, "valid", error)

    def _parse(self, entry: Entry, what: str) -> Expression | None:
        # a token stands for a number or a text that is not known yet; its width is kept for the columns
        text = TOKEN.sub(lambda match: "1".ljust(len(match[0])), entry.text)
        try:
            return parse(text)
        except ExpressionError as error:
            self._report(entry, what, error)
            return None

    def _report(self, entry: Entry, what: str, error: ExpressionError) -> None:
        place, is_in_file = self._place(entry, error.col)
        message = f"{what}: {error}" + (f" (column {error.col} of the expression)" if not is_in_file else "")
        self.findings.error(place, message, text=error.text or entry.text, hint=error.hint, code="expression")

    def _place(self, entry: Entry, col: int) -> tuple[Place, bool]:
        """Where a column of an expression is in the file, if it stands there as it is on one line."""
        written = self.source.text[entry.start : entry.end] if entry.start >= 0 else ""
        quotes = 1 if written[:1] in ("'", '"') else 0
        if written[quotes : len(written) - quotes] != entry.text:
            return entry.place, False
        return self.source.place(entry.start + quotes + col - 1), True

    def _check_circles(self, derived: dict[str, _Derived]) -> None:
        waiting = dict(derived)
        while waiting:
            ready = [n for n, one in waiting.items() if not waiting.keys() & set(one.expression.names)]
            if not ready:
                first, one = next(iter(waiting.items()))
                what = f"{', '.join(waiting)} are derived from each other in a circle"
                self.findings.error(
                    one.field.expression.place,
                    f"field {first}: {what if len(waiting) > 1 else 'it is derived from itself'}",
                    text=one.expression.text,
                    code="expression",
                )
                for name in waiting:
                    del derived[name]
                return
            for name in ready:
                del waiting[name]

    def _check_derived(self, one: _Derived, names: Mapping[str, ValueType]) -> None:
        entry, what = one.field.expression, f"field {one.field.name}"
        wanted = names[one.field.name]
        try:
            found = type_of(one.expression, names)
        except ExpressionError as error:
            self._report(entry, what, error)
            return
        if wanted is _ANY:
            return
        hint = ""
        if found.kind == "text":
            message = "its value is a text; only numbers are derived"
        elif wanted.kind == "text":
            message = "a text cannot be derived"
        elif found.shape != wanted.shape:
            shape = ", ".join('"*"' if size is None else str(size) for size in found.shape)
            hint = f"shape: [{shape}]" if found.shape else "leave its shape out"
            message = f"its value is {found}, and the field says {wanted}"
        elif found.kind != "any" and RANKS[found.kind] > RANKS[wanted.kind]:
            hint = f"e.g. dtype: {_MIXED.get(found.kind, found.kind)}"
            message = f"its value is {found}, which {one.field.dtype} does not hold"
        else:
            return
        self._report(entry, what, ExpressionError(message, 1, hint))


class _Field(Struct, frozen=True):
    """A field, or a member of a graph."""

    name: str
    block: Entry
    dtype: str
    graph: str = ""
    role: GraphRole | None = None

    @property
    def expression(self) -> Entry:
        return self.block.get("expression")


class _Derived(Struct, frozen=True):
    field: _Field
    expression: Expression


def _fields(aggregate: Entry) -> list[_Field]:
    """Every field; of graphs, the members."""
    found: list[_Field] = []
    for name, block in aggregate.get("fields").mapping.items():
        if block.get("kind").text != "graph":
            found.append(_Field(name, block, dtype_of(block)))
            continue
        for role, member in block.get("members").mapping.items():
            dtype = dtype_of(member, role, block)
            found.append(_Field(f"{name}.{role}", member, dtype, name, ROLES.get(role)))
    return found


def _type_of_field(field: _Field) -> ValueType:
    """The type of a field in expressions; any type if its shape is malformed or not known yet."""
    block, role, dtype = field.block, field.role, field.dtype
    if block.get("kind").text == "text":
        return ValueType("text")
    ragged, _ = shape_of(block)
    sizes = [item.text for item in block.get("shape").items][ragged:]
    if role and not ragged and not sizes:
        ragged = role.shape[:1] == (None,)
        sizes = [str(size) for size in role.shape[ragged:]]
    if not all(size.isdigit() for size in sizes):
        return _ANY
    if dtype.startswith("complex"):
        return ValueType("complex")
    number: Kind = "bool" if dtype == "bool" else "int" if "int" in dtype else "float"
    shape = tuple(int(size) for size in sizes)
    if not ragged:
        return ValueType(number, shape)
    # the same number of items in all members that count the same
    items = f"{field.graph} {role.item}s" if role and role.item else field.name
    return ValueType(number, (None, *shape), items)
