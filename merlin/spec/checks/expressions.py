"""The expressions of an aggregate: do they parse, are their names known, do their values fit?"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from merlin.base.document.findings import Findings, Place, SourceText
from merlin.base.document.tokens import TOKEN
from merlin.base.document.tree import Entry
from merlin.base.kinds import ROLES
from merlin.spec.checks.fields import shape_of
from merlin.spec.expression import Expression, ExpressionError, parse
from merlin.spec.expression_types import Kind, ValueType, expect_condition, type_of

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
        for name, block in _fields(aggregate):
            names[name] = _type_of_field(name, block)
            if not block.get("expression").is_null:
                expression = self._parse(block.get("expression"), f"field {name}")
                if expression is not None:
                    derived[name] = _Derived(name, block, expression)
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
                one = next(iter(waiting.values()))
                names = ", ".join(waiting)
                what = f"{names} are derived from each other in a circle"
                self.findings.error(
                    one.block.get("expression").place,
                    f"field {one.name}: {what if len(waiting) > 1 else 'it is derived from itself'}",
                    text=one.expression.text,
                    code="expression",
                )
                for name in waiting:
                    del derived[name]
                return
            for name in ready:
                del waiting[name]

    def _check_derived(self, one: _Derived, names: Mapping[str, ValueType]) -> None:
        entry, what = one.block.get("expression"), f"field {one.name}"
        wanted = names[one.name]
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
        elif not _holds(wanted.kind, found.kind):
            hint = f"e.g. dtype: {_MIXED.get(found.kind, found.kind)}"
            message = f"its value is {found}, which {one.block.get('dtype').text or 'float64'} does not hold"
        else:
            return
        self._report(entry, what, ExpressionError(message, 1, hint))


class _Derived(Struct, frozen=True):
    name: str
    block: Entry
    expression: Expression


def _holds(wanted: Kind, found: Kind) -> bool:
    ranks = {"bool": 0, "int": 1, "float": 2}
    return found == "any" or ranks.get(found, 3) <= ranks.get(wanted, 3)


def _fields(aggregate: Entry) -> list[tuple[str, Entry]]:
    """Every field by name; of graphs, the members."""
    found: list[tuple[str, Entry]] = []
    for name, block in aggregate.get("fields").mapping.items():
        if block.get("kind").text == "graph":
            found += [(f"{name}.{role}", member) for role, member in block.get("members").mapping.items()]
        else:
            found.append((name, block))
    return found


def _type_of_field(name: str, block: Entry) -> ValueType:
    """The type of a field in expressions; any type if its shape is malformed or not known yet."""
    if block.get("kind").text == "text":
        return ValueType("text")
    graph, _, member = name.rpartition(".")
    role = ROLES.get(member) if graph else None
    dtype = block.get("dtype").text or (role.dtype if role else "") or "float64"
    sizes = [item.text for item in block.get("shape").items]
    ragged, _ = shape_of(block)
    if role and not sizes:
        sizes = ["*" if size is None else str(size) for size in role.shape]
        ragged = sizes[:1] == ["*"]
    rest = sizes[ragged:]
    if not all(size.isdigit() for size in rest):
        return _ANY
    if dtype.startswith("complex"):
        return ValueType("complex")
    number: Kind = "bool" if dtype == "bool" else "int" if "int" in dtype else "float"
    items = f"{graph} {role.item}s" if role and role.item else name  # the same number in all of these members
    shape = tuple(int(size) for size in rest)
    return ValueType(number, (None, *shape), items) if ragged else ValueType(number, shape)
